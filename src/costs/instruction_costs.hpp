// The cost of the instructions of one program. Ops are priced once, since microbatches repeat them, and ops of equal
// signature once, since layers repeat them.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/graph/signature.hpp"
#include "merged_matmuls.hpp"

namespace espalier {

class InstructionCosts {
 public:
  InstructionCosts(const Costs& costs, const Program& program, const Coordinate& coordinate);
  const InstructionCost& Of(const Instruction& instruction);

 private:
  InstructionCost Price(const Instruction& instruction);
  /// The cost by signature and role of an op; `make` computes it once.
  template <typename Make>
  const InstructionCost& OfItsLike(const Op& op, bool accumulate, const Make& make);
  InstructionCost Kernel(const Op& op, bool accumulate);
  /// The share of a matmul in the one that the stack merges it into, by its multiplications.
  double MergedUs(const Op& op, const MergedMatmul& group, bool accumulate) const;
  InstructionCost Collective(const Op& op, int64_t wire_bytes) const;
  /// Cost of gathering `scalars`, which every stage sends to each other one.
  InstructionCost GatherStages(const Op& op, int64_t scalars) const;
  /// Rows of a strip that are several blocks in memory are copied, because NCCL's collectives want adjacent messages.
  double PackingUs(const Op& op) const;
  InstructionCost Message(const Op& op) const;

  int64_t LocalBytes(const std::vector<int>& values) const;
  /// As the stack reduces gradients, which our programs do in fp32.
  int64_t ReducedBytes(const Op& op, int64_t bytes) const;
  /// Every rank of the tp group has all of each value.
  bool SameOnTensorAxes(const std::vector<int>& values) const;

  /// Time of kernels that the stack runs and the program does not, by the op that they are added to.
  double ExtraUs(const Op& op) const;
  void FindUnread();

  const Costs& costs_;
  const Cluster& cluster_;
  const Program& program_;
  const Graph& graph_;
  Coordinate coordinate_;
  std::optional<MergedMatmuls> merged_;                // if cluster.merged_matmuls
  std::vector<std::optional<InstructionCost>> by_op_;  // op, then whether it accumulates
  Signatures signatures_;
  std::map<std::tuple<int, Role, bool>, InstructionCost> by_signature_;  // signature, role, whether it accumulates
  std::map<const Op*, double> unread_us_;  // cluster.recompute_unread: by the recomputed attention
};

}  // namespace espalier
