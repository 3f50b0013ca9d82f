#include "check_waits.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {

void CheckWaits(const Program& program) {
  std::array<std::vector<const Instruction*>, kLaneCount> lanes;
  for (const Instruction& i : program.instructions) lanes[static_cast<size_t>(i.lane)].push_back(&i);
  std::array<int, kLaneCount> done{};
  const auto unmet = [&](const Wait& wait) { return done[static_cast<size_t>(wait.lane)] < wait.count; };
  const auto head = [&](size_t lane) {
    return done[lane] < static_cast<int>(lanes[lane].size()) ? lanes[lane][static_cast<size_t>(done[lane])] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t lane = 0; lane < kLaneCount; ++lane)
      for (const Instruction* i; (i = head(lane)) != nullptr && std::none_of(i->waits.begin(), i->waits.end(), unmet);
           moved = true)
        ++done[lane];
  }
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const Instruction* stuck = head(lane);
    if (stuck == nullptr) continue;
    const Wait& wait = *std::find_if(stuck->waits.begin(), stuck->waits.end(), unmet);
    CHECK(false, "deadlock: {} on lane {} waits for {} instructions of lane {}, which never get past {}",
          program.graph->ops[static_cast<size_t>(stuck->op)].kind, Name(static_cast<Lane>(lane)), wait.count,
          Name(wait.lane), done[static_cast<size_t>(wait.lane)]);
  }
}

}  // namespace espalier
