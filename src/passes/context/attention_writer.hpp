// What stands in place of an attention op, written op by op: same role, layer and chunk, values named after its own.
#pragma once

#include <string>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

class AttentionWriter {
 public:
  /// Ops are appended to `ops`, in place of `op`: an attention, or attention_grad, on `cp` ranks.
  AttentionWriter(Graph& graph, std::vector<Op>& ops, const Op& op, int cp);

  const Op& op() const { return op_; }
  int cp() const { return cp_; }
  Value& ValueOf(int id) { return graph_.values[static_cast<size_t>(id)]; }
  /// Attributes of the op, and those that say how its rows lie: in zigzag order.
  const Attributes& zigzag() const { return zigzag_; }

  /// Emits an op that writes values which exist.
  void EmitInto(std::string_view kind, std::vector<int> inputs, std::vector<int> outputs, Attributes attributes = {});
  /// Emits an op with new outputs of the types that its rule infers, named `<name of like[i]>.<suffix>`.
  std::vector<int> Emit(std::string_view kind, std::vector<int> inputs, const std::vector<int>& like,
                        const std::string& suffix, Attributes attributes = {});
  /// A new value of the type of `id`, that nothing makes so far.
  int Like(int id, const std::string& suffix);
  /// `value` under another layout.
  int Reshard(int value, const std::string& layout, const std::string& suffix);

 private:
  Graph& graph_;
  std::vector<Op>& ops_;
  const Op& op_;
  int cp_;
  Attributes zigzag_;
};

/// Keys and values travel in a ring (context_ring.cpp).
void WriteRing(AttentionWriter& writer);
void WriteRingGrad(AttentionWriter& writer);

}  // namespace espalier
