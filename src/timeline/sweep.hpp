// Walks through a step of one rank in time order.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "timeline/lanes.hpp"

namespace espalier {

/// The activity of a rank between two moments without a change.
struct Interval {
  double begin_us = 0, end_us = 0;
  int kernel = -1;   ///< the instruction that runs on the compute lane, or -1
  int exposed = -1;  ///< the CommAxis that blocks the compute lane, or -1
  ByCommAxis<bool> transfers{};
};

/// The axes on which a lane transfers.
inline ByCommAxis<bool> TransfersOf(const LaneHeads& heads) {
  ByCommAxis<bool> axes{};
  for (Lane lane : kLanes)
    if (lane != Lane::kCompute && heads.transferring[lane]) axes[CommAxisOf(lane)] = true;
  return axes;
}

/// Adds `us` of this interval's activities.
void Count(Breakdown& total, const Interval& interval, double us);

/// Calls visit(Interval) for consecutive intervals from 0 to `step_us`; they are of positive length.
template <typename Visit>
void Sweep(const Track& track, double step_us, Visit visit) {
  const ByLane<std::vector<Span>> lanes = SpansByLane(track);
  LaneHeads heads;
  const auto head_of = [&](Lane lane) -> std::optional<Instruction> {
    const auto done = static_cast<size_t>(heads.done[lane]);
    if (done == lanes[lane].size()) return std::nullopt;
    return InstructionOf(track, lanes[lane][done]);
  };
  for (Lane lane : kLanes) heads.head[lane] = head_of(lane);
  for (double now = 0; now < step_us;) {
    double next = step_us;
    // Handles all events at this moment, then finds the time of the next change. A lane may have instructions of zero
    // length.
    for (Lane lane : kLanes)
      for (int& done = heads.done[lane]; done < std::ssize(lanes[lane]);) {
        const Span& span = lanes[lane][static_cast<size_t>(done)];
        heads.transferring[lane] = span.begin_us <= now && now < span.end_us;
        if (now < span.end_us) {
          next = std::min(next, now < span.begin_us ? span.begin_us : span.end_us);
          break;
        }
        ++done;
        heads.head[lane] = head_of(lane);
      }
    const size_t kernels = static_cast<size_t>(heads.done[Lane::kCompute]);
    const int kernel = heads.transferring[Lane::kCompute] ? lanes[Lane::kCompute][kernels].instruction : -1;
    visit(Interval{now, next, kernel, ExposedAxis(heads), TransfersOf(heads)});
    now = next;
  }
}

}  // namespace espalier
