// What a run reports about itself before its first step.
#pragma once

#include "train/run.hpp"

namespace espalier {

/// Writes the "start" record and says what the run trains on and computes with, and which keys differ from the
/// checkpoint that it continues. `step`: the step that this start continues from. Collective.
void Announce(const Run& run, const StartTimes& times, const WorldProof& proof, int64_t step);

}  // namespace espalier
