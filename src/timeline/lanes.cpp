#include "timeline/lanes.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void Order(std::vector<Span>& lane) {
  double end_us = 0;
  for (Span& span : lane) {
    span.ready_us = std::max(span.ready_us, end_us);
    span.begin_us = std::max(span.begin_us, span.ready_us);
    end_us = span.end_us = std::max(span.end_us, span.begin_us);
  }
}

}  // namespace

ByLane<std::vector<Span>> SpansByLane(const Track& track) {
  const Instructions& instructions = track.program->instructions;
  std::vector<const Span*> by_instruction(instructions.size());
  for (const Span& span : track.spans) by_instruction.at(static_cast<size_t>(span.instruction)) = &span;
  CHECK(track.spans.size() == instructions.size(), "rank {} has {} spans of {} instructions", track.rank,
        track.spans.size(), instructions.size());
  ByLane<std::vector<Span>> lanes;
  for (size_t i = 0; i < instructions.size(); ++i) {
    CHECK(by_instruction[i] != nullptr, "rank {} has no span of instruction {}", track.rank, i);
    lanes[instructions[i].lane].push_back(*by_instruction[i]);
  }
  for (std::vector<Span>& lane : lanes) Order(lane);
  return lanes;
}

}  // namespace espalier
