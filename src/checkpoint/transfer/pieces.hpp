// Which rank writes which shard of a tensor: a pure function of tensors and mesh, so every rank knows the whole plan.
#pragma once

#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

struct StatePiece {
  int tensor = 0;  ///< index into the tensors
  Box box;         ///< indices of the stored tensor; never empty
  int writer = 0;  ///< rank that writes it
  int first = 0;   ///< the first of the ranks that hold it: member 0 of their group over `replicas`
  AxisSet replicas;
  bool operator==(const StatePiece&) const = default;
};

/// Every shard of every tensor once, in the order of tensors, then of the mesh. Among the ranks with equal copies, the
/// one with the fewest bytes so far writes (ties: the lowest rank). CHECKs that shards tile each stored tensor, that
/// names differ, and that tensors are fp32 or bf16 with 1 to 8 dims and not partial.
std::vector<StatePiece> PlanPieces(const std::vector<StateTensor>& tensors, const Mesh& mesh);

/// By rank: the sum of the bytes of its shards, each of them rounded. It finds the same writers as PlanPieces without
/// the boxes, which take long for thousands of ranks.
std::vector<int64_t> SumByWriter(const std::vector<StateTensor>& tensors, const Mesh& mesh,
                                 int64_t (*rounded)(int64_t bytes));

}  // namespace espalier
