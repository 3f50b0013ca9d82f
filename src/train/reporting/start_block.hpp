// The lines that a run prints before its first step: its settings, its devices, and how it ends.
#pragma once

#include <vector>

#include "espalier/report/block.hpp"
#include "train/run.hpp"

namespace espalier {

/// The lines on rank 0; none on others. `step` is the last finished one. Collective.
std::vector<BlockLine> StartBlock(const Run& run, const StartTimes& times, const WorldProof& proof, int64_t step);

}  // namespace espalier
