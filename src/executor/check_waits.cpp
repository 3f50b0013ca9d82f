#include "check_waits.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {

void CheckWaits(const Program& program) {
  ByLane<std::vector<int>> lanes;  // instructions
  for (int i = 0; i < std::ssize(program.instructions); ++i)
    lanes[program.instructions[static_cast<size_t>(i)].lane].push_back(i);
  ByLane<int> done{};
  const auto unmet = [&](const Wait& wait) { return done[wait.lane] < wait.count; };
  const auto ended = [&](Lane lane) { return done[lane] == std::ssize(lanes[lane]); };
  const auto head = [&](Lane lane) { return program.instructions[static_cast<size_t>(lanes[lane][done[lane]])]; };
  for (bool moved = true; moved;) {
    moved = false;
    for (Lane lane : kLanes)
      for (; !ended(lane) && std::ranges::none_of(head(lane).waits, unmet); moved = true) ++done[lane];
  }
  for (Lane lane : kLanes) {
    if (ended(lane)) continue;
    const Instruction stuck = head(lane);
    const Wait& wait = *std::ranges::find_if(stuck.waits, unmet);
    CHECK(false, "deadlock: {} on lane {} waits for {} instructions of lane {}, which never get past {}",
          program.graph->op(stuck.op).kind, Name(lane), wait.count, Name(wait.lane), done[wait.lane]);
  }
}

}  // namespace espalier
