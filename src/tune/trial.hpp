// Compiled candidates: their exact peak and their simulated step.
#pragma once

#include <optional>

#include "espalier/tune/tune.hpp"

namespace espalier {

/// The largest peak of all ranks, over all programs of a run (as PlanWorld, without the proof that they match).
int64_t PeakBytes(const Deck& deck, int ranks);

struct Trial {
  int64_t peak_bytes = 0;  ///< peak of the largest rank, or of the first that is too large
  int64_t host_bytes = 0;  ///< of the rank that has most there
  bool fits = false;       ///< the device, and the host if the cluster file states its memory
  /// Why it was not simulated although it fits; empty: it was.
  std::string why_not;
  double step_us = 0;
  Breakdown breakdown;  ///< of the slowest rank
  ByStepPart<PartTimes> parts{};
  double measured_share = 0;
};

/// Ranks with unequal shards have programs of their own. In a search a layout with more of them is not worth
/// simulating.
inline constexpr int kMaxProgramsPerStage = 64;

/// Compiles a deck, with what it leaves open about memory chosen for `memory_bytes`; simulates it if it fits the
/// device.
Trial Try(const Deck& deck, int ranks, const Costs& costs, int64_t memory_bytes,
          int programs_per_stage = kMaxProgramsPerStage);

/// The simulated step alone, and the peaks of the training program, of a deck that leaves nothing open.
Trial TryTraining(const Deck& deck, int ranks, const Costs& costs);

/// "idle 21 %", "exposed tp 12 %": the largest share of the step besides compute.
std::string LimitOf(const Breakdown& breakdown, double step_us);

}  // namespace espalier
