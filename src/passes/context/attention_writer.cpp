#include "passes/context/attention_writer.hpp"

#include "espalier/ops/op.hpp"

namespace espalier {

AttentionWriter::AttentionWriter(Graph& graph, const Op& op, int cp)
    : graph_(graph), op_(op), cp_(cp), zigzag_(op.attributes) {
  zigzag_.numbers["cp"] = cp;
  zigzag_.numbers["length"] = double(ValueOf(op.inputs[0]).type.shape[1]);
}

void AttentionWriter::EmitInto(OpKind kind, std::vector<int> inputs, std::vector<int> outputs, Attributes attributes) {
  graph_.ops.push_back(
      {kind, std::move(inputs), std::move(outputs), std::move(attributes), op_.role, op_.layer, op_.chunk});
}

std::vector<int> AttentionWriter::Emit(OpKind kind, std::vector<int> inputs, const std::vector<int>& like,
                                       const std::string& suffix, Attributes attributes) {
  EmitInto(kind, std::move(inputs), {}, std::move(attributes));
  const std::vector<Type> types = Define(kind).infer(ContextOf(graph_, graph_.ops.back()));
  for (size_t i = 0; i < types.size(); ++i) {
    graph_.ops.back().outputs.push_back(Like(like[i], suffix));
    ValueOf(graph_.ops.back().outputs[i]).type = types[i];
  }
  return graph_.ops.back().outputs;
}

int AttentionWriter::Like(int id, const std::string& suffix) {
  return graph_.AddValue({graph_.Unique(ValueOf(id).name + "." + suffix), ValueOf(id).type, ValueKind::kActivation,
                          op_.frequency(), op_.chunk, -1, ""});
}

int AttentionWriter::Reshard(int value, const std::string& layout, const std::string& suffix) {
  const int there = Emit(OpKind::kReshard, {value}, {value}, suffix)[0];
  ValueOf(there).layout = layout;
  return there;
}

}  // namespace espalier
