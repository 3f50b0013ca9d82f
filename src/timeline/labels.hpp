// The labels of ranks and instructions in pictures and traces.
#pragma once

#include <string>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// "F2": role and microbatch; only the role for jobs that run once per step.
std::string JobLabel(const Op& op, const Instruction& instruction);

/// "rank 3, stage 1"; "rank 0 (of 32 alike), stage 0".
std::string TrackLabel(const Track& track);

}  // namespace espalier
