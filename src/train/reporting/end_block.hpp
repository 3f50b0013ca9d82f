// The lines at the end of a run, besides the summary of its steps: where the results are, and what to do next.
#pragma once

#include <string>
#include <vector>

#include "espalier/report/block.hpp"
#include "train/run.hpp"
#include "train/step_loop.hpp"

namespace espalier {

/// How to start this run again so that it continues: "the same command", with any additional arguments.
std::string SameCommand(const Run& run);

/// "the last good checkpoint is DIR: the same command goes on from it", or that there is none. `proven` is the last
/// step whose weights made a finite step. A newer checkpoint may be unusable: then the text names the one before it and
/// the command that begins there. For rank 0.
std::string LastGoodCheckpoint(const Run& run, int64_t proven);

/// Where the results are and, after a run that is done or stopped, how to continue and how to use the model. For rank
/// 0.
std::vector<BlockLine> EndBlock(const Run& run, const Outcome& outcome, ExitStatus status);

}  // namespace espalier
