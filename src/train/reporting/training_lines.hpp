// The training lines of the start block, which depend only on the deck and the programs.
#pragma once

#include <vector>

#include "espalier/report/block.hpp"
#include "train/run.hpp"

namespace espalier {

/// Model, precision, optimizer with its groups of parameters, and steps. `step` is the last finished one.
BlockLines TrainingLines(const Run& run, int64_t step);

}  // namespace espalier
