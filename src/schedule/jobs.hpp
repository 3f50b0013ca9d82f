// The bricks that the schedules are built of.
#pragma once

#include <numeric>
#include <string>
#include <string_view>

#include "espalier/schedule/schedule.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Name of the schedule that has no backward roles; every other one must run F, B and W.
inline constexpr std::string_view kForwardOnly = "forward-only";

/// A schedule without jobs in which chunk c is stage c.
inline Schedule OneChunkPerStage(std::string_view name, int stages, int microbatches) {
  CHECK(stages >= 1 && microbatches >= 1, "schedule {} of {} stages and {} microbatches", name, stages, microbatches);
  Schedule schedule{std::string(name), stages, microbatches, std::vector<int>(static_cast<size_t>(stages)),
                    std::vector<std::vector<Job>>(static_cast<size_t>(stages))};
  std::iota(schedule.stage_of_chunk.begin(), schedule.stage_of_chunk.end(), 0);
  return schedule;
}

/// F of one microbatch.
inline Job ForwardJob(int chunk, int microbatch) { return {{{chunk, Role::kF, microbatch}}}; }

/// B and W of one microbatch, woven layer by layer.
inline Job BackwardJob(int chunk, int microbatch) {
  return {{{chunk, Role::kB, microbatch}, {chunk, Role::kW, microbatch}}};
}

/// "BW0" or, with several chunks, "BW0.1"; parts of different microbatches or chunks are joined by '&'.
std::string LabelOf(const Schedule& schedule, const Job& job);

}  // namespace espalier
