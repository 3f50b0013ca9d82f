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
  const InstructionCost& CachedCost(const Op& op, bool accumulate, const Make& make);
  InstructionCost Kernel(const Op& op, bool accumulate);
  /// The time of a kernel under the routing, if it takes `us` under a balanced one.
  double RoutedUs(const Op& op, bool accumulate, double us) const;
  std::vector<double> LoadsWithin(int layer, const Range& experts) const;
  /// Time of the merged GEMM, divided among its parts by FLOPs.
  double MergedUs(const Op& op, const MergedMatmul& group, bool accumulate) const;
  InstructionCost Collective(const Op& op, int64_t wire_bytes) const;
  /// A gather or a sum over ranks that share experts, by a stack that exchanges tokens instead.
  InstructionCost Exchange(const Op& op, int64_t wire_bytes) const;
  InstructionCost HostCopy(const Op& op, int64_t bytes) const;
  /// Cost of gathering `scalars`, which every stage sends to each other one.
  InstructionCost GatherStages(const Op& op, int64_t scalars) const;
  InstructionCost Message(const Op& op) const;

  int64_t LocalBytes(const std::vector<int>& values) const;
  /// Bytes of a message in the type in which the stack reduces or gathers; our programs reduce in fp32.
  int64_t ReducedBytes(const Op& op, int64_t bytes) const;
  /// Whether every rank of the tp group has all of each value.
  bool SameOnTensorAxes(const std::vector<int>& values) const;

  /// Time of kernels that the stack runs and the program does not, added to this op.
  double ExtraUs(const Op& op) const;
  double GradientPassesUs(const Op& op, bool accumulate) const;
  void FindUnread();

  const Costs& costs_;
  const Cluster& cluster_;
  const Program& program_;
  const Graph& graph_;
  Coordinate coordinate_;
  std::optional<MergedMatmuls> merged_;                // if cluster.merged_matmuls
  std::vector<std::optional<InstructionCost>> by_op_;  // by op and whether it accumulates
  Signatures signatures_;
  double experts_per_token_ = 0;  ///< of the routers of the program; 0: it has none
  int64_t experts_ = 0;           ///< the same
  std::map<std::tuple<int, Role, bool>, InstructionCost> by_signature_;  // by signature, role and accumulation
  std::map<const Op*, double> unread_us_;  // cluster.recompute_unread: by the recomputed attention
};

}  // namespace espalier
