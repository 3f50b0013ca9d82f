#include "timeline/labels.hpp"

#include <fmt/core.h>

namespace espalier {

std::string JobLabel(const Op& op, const Instruction& instruction) {
  return instruction.microbatch < 0 ? std::string(Name(op.role))
                                    : fmt::format("{}{}", Name(op.role), instruction.microbatch);
}

std::string TrackLabel(const Track& track) {
  const std::string ranks = track.ranks > 1 ? fmt::format("rank {} (of {} alike)", track.rank, track.ranks)
                                            : fmt::format("rank {}", track.rank);
  return fmt::format("{}, stage {}", ranks, track.program->stage);
}

}  // namespace espalier
