// The progress of a rank, in memory that other threads may read at any time, and other processes through a mapped file.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "espalier/program/instruction.hpp"

namespace espalier {

/// Finished instructions by lane in the current step, as in LaneCounts. Relaxed: the numbers are not consistent with
/// one another.
struct Progress {
  std::atomic<int32_t> runs{0};  ///< steps started
  ByLane<std::atomic<int32_t>> done{};
  std::atomic<int32_t> alive{0};  ///< changes while a device works on instructions that `done` counts as issued
};
static_assert(std::atomic<int32_t>::is_always_lock_free && sizeof(Progress) == 4 * (2 + kLaneCount));

}  // namespace espalier
