// Reports a run before its first step.
#pragma once

#include "train/run.hpp"

namespace espalier {

/// Writes the "start" record and reports data, device and the keys that differ from the checkpoint that the run
/// continues. `step`: the step that this start continues from. Collective.
void Announce(const Run& run, const StartTimes& times, const WorldProof& proof, int64_t step);

}  // namespace espalier
