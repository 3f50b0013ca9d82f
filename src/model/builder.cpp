#include "builder.hpp"

#include <algorithm>
#include <map>

#include "espalier/graph/provenance.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

int Builder::MicrobatchInput(const std::string& name, Shape shape, std::string layout) {
  return model_.graph.AddValue({name, MakeType(Dtype::kI32, std::move(shape)), ValueKind::kInput,
                                Frequency::kMicrobatch, Chunk(), -1, std::move(layout)});
}

int Builder::SharedMicrobatchInput(const std::string& name, Shape shape, std::string layout) {
  return model_.graph.AddValue({name, MakeType(Dtype::kI32, std::move(shape)), ValueKind::kInput,
                                Frequency::kMicrobatch, kAllChunks, -1, std::move(layout)});
}

int Builder::StepInput(const std::string& name, Shape shape, std::string layout) {
  return model_.graph.AddValue({name, MakeType(Dtype::kI32, std::move(shape)), ValueKind::kInput, Frequency::kStep,
                                kAllChunks, -1, std::move(layout)});
}

int Builder::StepNumber() {
  if (const int id = model_.graph.FindOrNone("step"); id >= 0) return id;
  return model_.graph.AddValue(
      {"step", MakeType(Dtype::kF32, {}), ValueKind::kInput, Frequency::kStep, kAllChunks, -1, ""});
}

int Builder::Parameter(const std::string& name, Shape shape, std::string layout, ParameterInit init) {
  StoredPart whole{name, shape, Shape(shape.size(), 0)};
  return AddParameter(name, std::move(whole), std::move(shape), std::move(layout), init);
}

int Builder::Parameter(const std::string& word, const StoredPart& stored, Shape shape, std::string layout,
                       ParameterInit init) {
  return AddParameter(stored.name + "[" + word + "]", stored, std::move(shape), std::move(layout), init);
}

int Builder::Untrained(const std::string& name, Shape shape, std::string layout) {
  StoredPart whole{name, shape, Shape(shape.size(), 0)};
  const int state = AddState(name, std::move(whole), MakeType(Dtype::kF32, std::move(shape)), std::move(layout),
                             {ParameterInit::Kind::kZeros, 0});
  model_.graph.value(state).trained = false;
  return state;
}

int Builder::AddState(const std::string& name, StoredPart stored, Type type, std::string layout, ParameterInit init) {
  model_.parameters.push_back(name);
  model_.inits.push_back(init);
  model_.stored.push_back(std::move(stored));
  return model_.graph.AddValue(
      {StateName(name), std::move(type), ValueKind::kState, Frequency::kStep, Chunk(), -1, std::move(layout)});
}

int Builder::AddParameter(std::string name, StoredPart stored, Shape shape, std::string layout, ParameterInit init) {
  const Dtype kept = KeepsComputeType(purpose_) ? compute_ : Dtype::kF32;
  const int master = AddState(name, std::move(stored), MakeType(kept, std::move(shape)), std::move(layout), init);
  if (compute_ == kept) return master;
  return Prepare(OpKind::kCast, {master}, name, {{}, {{"to", std::string(Name(compute_))}}});
}

int Builder::Cache(const std::string& name, int x, int64_t length) {
  Type type = model_.graph.value(x).type;
  type.shape[1] = length;
  return model_.graph.AddValue({name, std::move(type), ValueKind::kCache, Frequency::kStep, Chunk(), -1, ""});
}

int Builder::WriteCache(int cache, int x, int positions) {
  model_.graph.AddOp({OpKind::kCacheWrite, {cache, x, positions}, {cache}, {}, Role::kF, layer_, Chunk()});
  return cache;
}

int Builder::Emit(OpKind kind, std::vector<int> inputs, std::vector<std::string> names, Attributes attributes,
                  std::string layout) {
  return EmitIn(Role::kF, kind, std::move(inputs), std::move(names), std::move(attributes), std::move(layout));
}

int Builder::Prepare(OpKind kind, std::vector<int> inputs, const std::string& name, Attributes attributes) {
  return EmitIn(Role::kP, kind, std::move(inputs), {name}, std::move(attributes), "");
}

int Builder::EmitIn(Role role, OpKind kind, std::vector<int> inputs, std::vector<std::string> names,
                    Attributes attributes, std::string layout) {
  // Ops that depend on step inputs alone run on every stage.
  const bool everywhere =
      std::all_of(inputs.begin(), inputs.end(), [&](int i) { return model_.graph.value(i).chunk == kAllChunks; });
  Op op{kind, std::move(inputs), {}, std::move(attributes), role, layer_, everywhere ? kAllChunks : Chunk()};
  const std::vector<Type> types = Define(kind).infer(ContextOf(model_.graph, op));
  CHECK(types.size() == names.size(), "{} makes {} values, {} are named", kind, types.size(), names.size());
  for (size_t i = 0; i < types.size(); ++i)
    op.outputs.push_back(model_.graph.AddValue(
        {std::move(names[i]), types[i], ValueKind::kActivation, op.frequency(), op.chunk, -1, i == 0 ? layout : ""}));
  const int first = op.outputs.at(0);
  model_.graph.AddOp(std::move(op));
  return first;
}

std::vector<int> Builder::LossTerms(int logits, const std::string& targets, const std::string& suffix,
                                    Attributes attributes) {
  const Shape& shape = model_.graph.value(logits).type.shape;
  const int ids = MicrobatchInput(targets, {shape[0], shape[1]}, "batch,seq");
  const std::string layout = purpose_ == Purpose::kScore ? "batch,seq" : "";
  const int max = Emit(OpKind::kLogitsMax, {logits}, {"logits_max" + suffix}, {}, layout);
  const int sum = Emit(OpKind::kLogitsSum, {logits, max, ids}, {"logits_sum" + suffix, "logits_target" + suffix},
                       std::move(attributes), layout);
  return {max, sum, OutputsOf(sum)[1], ids};
}

void Builder::Loss(int logits, double z_loss) {
  std::vector<int>& results = model_.graph.results;
  if (purpose_ == Purpose::kSample) return results.push_back(logits);
  const bool with_z = HasBackward(purpose_) && z_loss > 0;
  const Attributes attributes = with_z ? Attributes{{{"z_loss", z_loss}}, {}} : Attributes{};
  const std::vector<int> terms = LossTerms(logits, "targets", "", attributes);
  if (purpose_ == Purpose::kScore) {
    model_.graph.value(terms[2]).layout = model_.graph.value(terms[1]).layout;  // as results, all three are reduced
    results = {terms[0], terms[1], terms[2]};
    return;
  }
  std::vector<std::string> names = {"loss", "count"};
  if (with_z) names.emplace_back("z_loss");
  results = OutputsOf(Emit(OpKind::kTokenLoss, terms, std::move(names), attributes));
}

void Builder::FurtherLoss(int logits, int depth, double weight) {
  const std::vector<int> terms =
      LossTerms(logits, TargetsOfDepth(depth), fmt::format(".{}", depth), {{{"weight", weight}}, {}});
  Emit(OpKind::kTokenLoss, terms, {LossOfDepth(depth), CountOfDepth(depth)});
}

void Builder::DropUnread() {
  const Graph& all = model_.graph;
  std::vector<bool> read(all.values.size());
  for (size_t i = 0; i < read.size(); ++i) read[i] = all.values[i].kind == ValueKind::kState;
  for (const int result : all.results) read[static_cast<size_t>(result)] = true;
  const auto is_read = [&](int v) { return read[static_cast<size_t>(v)]; };
  std::vector<bool> kept(all.ops.size());
  for (size_t i = all.ops.size(); i-- > 0;) {
    const Op& op = all.ops[i];
    kept[i] = op.role != Role::kF || std::ranges::any_of(op.outputs, is_read);
    if (!kept[i]) continue;
    for (const std::vector<int>* operands : {&op.inputs, &op.outputs})
      for (const int v : *operands) read[static_cast<size_t>(v)] = true;
  }
  Graph left;
  std::map<int, int> values;
  for (size_t i = 0; i < read.size(); ++i)
    if (read[i]) values[static_cast<int>(i)] = left.AddValue(all.values[i]);
  const auto renumber = [&](std::vector<int> ids) {
    for (int& id : ids) id = values.at(id);
    return ids;
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    Op op = all.ops[i];
    op.inputs = renumber(op.inputs);
    op.outputs = renumber(op.outputs);
    left.AddOp(std::move(op));
  }
  left.results = renumber(all.results);
  model_.graph = std::move(left);
}

int Builder::Cheap(int value) {
  const int producer = model_.graph.value(value).producer;
  CHECK(producer >= 0, "no op makes this value");
  model_.graph.op(producer).cheap = true;
  return value;
}

const std::vector<int>& Builder::OutputsOf(int value) const {
  const int producer = model_.graph.value(value).producer;
  CHECK(producer >= 0, "no op makes this value");
  return model_.graph.op(producer).outputs;
}

}  // namespace espalier
