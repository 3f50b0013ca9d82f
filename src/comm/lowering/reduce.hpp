// Joining partial results. The order of additions is the group's, per element and in fp32, whatever the message sizes:
// a library's own reductions add in other orders from one size to the next.
#pragma once

#include <span>
#include <vector>

#include "comm/lowering/box_copy.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

/// to[e] = sources[0][e] + sources[1][e] + ... (or the largest), left to right; bf16 is added in fp32 and rounded once.
/// `to` may be one of the sources.
void JoinRun(Dtype dtype, Reduce how, std::byte* to, std::span<const std::byte* const> sources, int64_t count);

/// One tensor's join: the members' pieces, packed, with this member's own piece where it lies in its input.
struct Join {
  Dtype dtype = Dtype::kF32;
  Reduce how = Reduce::kSum;
  BoxCopy own;                            ///< from the input to the (dense) output
  size_t own_index = 0;                   ///< this member's place in the group
  std::vector<const std::byte*> sources;  ///< by member; the own one is not looked at
};

void Run(const Join& join);

}  // namespace espalier
