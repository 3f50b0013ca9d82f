#include "check_waits.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {

void CheckWaits(const Program& program) {
  ByLane<std::vector<const Instruction*>> lanes;
  for (const Instruction& i : program.instructions) lanes[i.lane].push_back(&i);
  ByLane<int> done{};
  const auto unmet = [&](const Wait& wait) { return done[wait.lane] < wait.count; };
  const auto head = [&](Lane lane) { return done[lane] < std::ssize(lanes[lane]) ? lanes[lane][done[lane]] : nullptr; };
  for (bool moved = true; moved;) {
    moved = false;
    for (Lane lane : kLanes)
      for (const Instruction* i; (i = head(lane)) != nullptr && std::none_of(i->waits.begin(), i->waits.end(), unmet);
           moved = true)
        ++done[lane];
  }
  for (Lane lane : kLanes) {
    const Instruction* stuck = head(lane);
    if (stuck == nullptr) continue;
    const Wait& wait = *std::find_if(stuck->waits.begin(), stuck->waits.end(), unmet);
    CHECK(false, "deadlock: {} on lane {} waits for {} instructions of lane {}, which never get past {}",
          program.graph->op(stuck->op).kind, Name(lane), wait.count, Name(wait.lane), done[wait.lane]);
  }
}

}  // namespace espalier
