// Measured times of kernels and of collectives. A calibration or any timed run adds rows; a cluster file keeps them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "espalier/graph/op_kind.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// The ranks of a group on their nodes. Two groups of equal place have equal costs.
struct GroupPlace {
  int ranks = 1;
  int nodes = 1;
  int ranks_per_node = 1;  ///< largest number of the group's ranks on one node
  auto operator<=>(const GroupPlace&) const = default;
};

/// A kernel with its local shapes: kernels of equal keys take equal time.
struct KernelKey {
  OpKind kind = OpKind::kNone;
  std::string variant;  ///< element type and everything else that selects the kernel: "bf16 bsk,nk->bsn", "f32 causal
                        ///< head_dim 64"
  std::vector<int64_t> sizes;  ///< the numbers that scale its work: m, n, k of a matmul
  auto operator<=>(const KernelKey&) const = default;
};
KernelKey KeyOf(const LocalOp& op, bool accumulate);

/// A measured time and how many measurements it is the median of.
struct Measured {
  double us = 0;
  int64_t samples = 0;
};

struct CollectiveKey {
  OpKind kind = OpKind::kNone;
  GroupPlace place;
  auto operator<=>(const CollectiveKey&) const = default;
};

/// The key of a program's transfer in tables. A recv has the key of its send.
struct TransferKey {
  CollectiveKey key;
  int64_t bytes = 0;  ///< bytes that one member sends
};
/// CHECKs that the instruction communicates. `ranks_per_node`: ranks fill nodes in order.
TransferKey KeyOfTransfer(const Program& program, const Instruction& instruction, const Coordinate& coordinate,
                          int ranks_per_node);

struct CostTable {
  std::map<KernelKey, Measured> kernels;
  /// By bytes that one member sends, ascending.
  std::map<CollectiveKey, std::map<int64_t, Measured>> collectives;

  /// Adds rows; if both have one, the times are averaged, weighted by samples.
  void Merge(const CostTable& newer);
};

}  // namespace espalier
