// Which rank writes which piece of a tensor: a pure function of tensors and mesh, so every rank knows the whole plan.
#pragma once

#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

struct Piece {
  int tensor = 0;  ///< index into the tensors
  Box box;         ///< indices of the stored tensor; never empty
  int writer = 0;  ///< rank that writes it
  int first = 0;   ///< the first of the ranks that hold it: member 0 of their group over `replicas`
  AxisSet replicas;
  bool operator==(const Piece&) const = default;
};

/// Every piece of every tensor once, in the order of tensors, then of the mesh. Of the ranks with equal copies, the one
/// with the fewest bytes so far writes (ties: the lowest rank). CHECKs that pieces tile each stored tensor, that names
/// differ, and that tensors are fp32 or bf16 with 1 to 8 dims and not partial.
std::vector<Piece> PlanPieces(const std::vector<StateTensor>& tensors, const Mesh& mesh);

/// By rank: the sum of the bytes of its pieces, each of them rounded. The writers of PlanPieces without its boxes,
/// which for thousands of ranks take long.
std::vector<int64_t> SumByWriter(const std::vector<StateTensor>& tensors, const Mesh& mesh,
                                 int64_t (*rounded)(int64_t bytes));

}  // namespace espalier
