// Writes the ops that replace one attention op: same role, layer and chunk; values are named after those of the op.
#pragma once

#include <string>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

class AttentionWriter {
 public:
  /// Ops are appended to the graph; they replace `op`, an attention or attention_grad on `cp` ranks.
  AttentionWriter(Graph& graph, const Op& op, int cp);

  const Op& op() const { return op_; }
  /// `inputs`, then the op's inputs from number `from` on: documents and those of dropout, if it has them.
  std::vector<int> WithOthers(std::vector<int> inputs, size_t from) const {
    inputs.insert(inputs.end(), op_.inputs.begin() + static_cast<ptrdiff_t>(from), op_.inputs.end());
    return inputs;
  }
  int cp() const { return cp_; }
  Value& ValueOf(int id) { return graph_.value(id); }
  /// Attributes of the op, with those of zigzag order.
  const Attributes& zigzag() const { return zigzag_; }

  /// Emits an op that writes existing values.
  void EmitInto(OpKind kind, std::vector<int> inputs, std::vector<int> outputs, Attributes attributes = {});
  /// Emits an op with new outputs of the types that it infers, named `<name of like[i]>.<suffix>`.
  std::vector<int> Emit(OpKind kind, std::vector<int> inputs, const std::vector<int>& like, const std::string& suffix,
                        Attributes attributes = {});
  /// A new value of the type of `id`, without a producer so far.
  int Like(int id, const std::string& suffix);
  /// `value` under another layout.
  int Reshard(int value, const std::string& layout, const std::string& suffix);

 private:
  Graph& graph_;
  const Op& op_;
  int cp_;
  Attributes zigzag_;
};

/// Ring attention (context_ring.cpp).
void WriteRing(AttentionWriter& writer);
void WriteRingGrad(AttentionWriter& writer);

}  // namespace espalier
