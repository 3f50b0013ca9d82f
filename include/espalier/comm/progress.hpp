// How far a rank has come, in words that other threads and, through a mapped file, other processes may read at any
// time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "espalier/program/instruction.hpp"

namespace espalier {

/// Finished instructions by lane in the step under way; what LaneCounts says of it. Relaxed: each number is true by
/// itself.
struct Progress {
  std::atomic<int32_t> runs{0};  ///< steps begun
  ByLane<std::atomic<int32_t>> done{};
  std::atomic<int32_t> alive{0};  ///< changes while a device computes what `done` counts as issued
};
static_assert(std::atomic<int32_t>::is_always_lock_free && sizeof(Progress) == 4 * (2 + kLaneCount));

}  // namespace espalier
