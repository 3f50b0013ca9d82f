// How tensors are aligned in memory.
#pragma once

#include <cstdint>

namespace espalier {

/// Offsets in the arena, and messages packed in a workspace, are multiples of this many bytes.
inline constexpr int64_t kAlignment = 64;
constexpr int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace espalier
