// Reduces partial results. Elements are added in the order of the group's members, in fp32, whatever the sizes of the
// messages. A library's own reductions change their order of addition with the size.
#pragma once

#include <span>
#include <vector>

#include "comm/lowering/strided_copy.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

/// to[e] = sources[0][e] + sources[1][e] + ... (or the maximum), left to right; bf16 is added in fp32 and rounded once.
/// `to` may be one of the sources.
void ReduceRun(Dtype dtype, Reduce how, std::byte* to, std::span<const std::byte* const> sources, int64_t count);

/// The reduction of one tensor: the packed buffers that the other members sent, and this member's own, read from its
/// input.
struct Reduction {
  Dtype dtype = Dtype::kF32;
  Reduce how = Reduce::kSum;
  StridedCopy own;                        ///< from the input to the (dense) output
  size_t own_index = 0;                   ///< this member's index in the group
  std::vector<const std::byte*> sources;  ///< by member; the entry at own_index is not read
};

void Run(const Reduction& reduction);

}  // namespace espalier
