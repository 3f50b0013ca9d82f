// The spans of a track by lane.
#pragma once

#include <vector>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

inline Instruction InstructionOf(const Track& track, const Span& span) {
  return track.program->instructions[static_cast<size_t>(span.instruction)];
}

/// The spans of each lane in program order. Clocks of measured spans are corrected so that ready <= begin <= end, and
/// no instruction is ready before the previous one of its lane has ended. CHECKs that every instruction has one span.
ByLane<std::vector<Span>> SpansByLane(const Track& track);

}  // namespace espalier
