// The end of a run.
#pragma once

#include <filesystem>

#include "train/run.hpp"
#include "train/step_loop.hpp"

namespace espalier {

/// `run.dir`/done: it exists once all steps are done. Chains of jobs rely on it, since launchers may lose exit
/// statuses.
std::filesystem::path DoneFile(const Deck& deck);

/// Waits for the last save, reports the end, ends the watch, writes the done file. Returns kDone or kStopped; throws
/// AgreedError if the run failed or its last checkpoint could not be saved. Collective.
ExitStatus Finish(const Run& run, const Outcome& outcome);

}  // namespace espalier
