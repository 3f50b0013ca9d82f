// Replays the job lists of all stages together, with or without rendezvous.
#pragma once

#include <string>
#include <vector>

#include "espalier/schedule/schedule.hpp"

namespace espalier {

/// A replay that may have deadlocked.
struct ReplayOutcome {
  Replay replay;
  /// One message per stage that did not finish: "stage 1 waits in F0.2 for ...".
  std::vector<std::string> stuck;
};

/// Runs every stage's jobs in order. A job starts when the stage is free and what its parts need has arrived, and sends
/// when it ends. Messages take no time. Without `receives` a send ends at once, into a buffer. With them each stage has
/// one in-order send lane and one in-order receive lane (rendezvous); a message is delivered when it is first in both.
ReplayOutcome PlayJobs(const Schedule& schedule, RoleCosts costs, const Receives* receives = nullptr);

}  // namespace espalier
