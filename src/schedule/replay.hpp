// Replays the job lists of all stages together, with or without rendezvous.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/schedule/schedule.hpp"

namespace espalier {

/// A stage that did not finish: "stage 1 waits in F0.2 for ...".
struct StuckStage {
  int stage = 0;
  std::string why;
};

/// A replay that may have deadlocked.
struct ReplayOutcome {
  Replay replay;
  std::vector<StuckStage> stuck;
};

/// Why a schedule is refused.
struct ScheduleFault {
  int stage = -1;                  ///< -1: all stages
  std::optional<size_t> job = {};  ///< in the list of the stage; none: all of it
  std::string why;
};
/// The first fault in the jobs of a schedule, as Validate finds it; none: its jobs are sound.
std::optional<ScheduleFault> FirstFault(const Schedule& schedule);

/// Runs every stage's jobs in order. A job starts when the stage is free and what its parts need has arrived, and sends
/// when it ends. Messages take no time. Without `receives` a send ends at once, into a buffer. With them each stage has
/// one in-order send lane and one in-order receive lane (rendezvous); a message is delivered when it is first in both.
ReplayOutcome PlayJobs(const Schedule& schedule, RoleCosts costs, const Receives* receives = nullptr);

}  // namespace espalier
