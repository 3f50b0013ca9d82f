#include "espalier/timeline/timeline.hpp"

namespace espalier {
namespace {

/// A set of lanes, one bit each.
using LaneBits = uint32_t;
constexpr LaneBits Bit(Lane lane) { return LaneBits{1} << static_cast<int>(lane); }

/// The lanes that this instruction waits for now.
LaneBits Awaited(const Instruction& instruction, const ByLane<int>& done) {
  LaneBits lanes = 0;
  for (const Wait& wait : instruction.waits)
    if (done[wait.lane] < wait.count) lanes |= Bit(wait.lane);
  return lanes;
}

LaneBits Unfinished(const LaneHeads& heads) {
  LaneBits lanes = 0;
  for (Lane lane : kLanes)
    if (heads.head[lane]) lanes |= Bit(lane);
  return lanes;
}

}  // namespace

int ExposedAxis(const LaneHeads& heads) {
  if (heads.transferring[Lane::kCompute]) return -1;
  const std::optional<Instruction>& next = heads.head[Lane::kCompute];
  LaneBits reached = next ? Awaited(*next, heads.done) : Unfinished(heads);
  LaneBits visited = Bit(Lane::kCompute);
  while ((reached & ~visited) != 0) {
    const LaneBits before = visited;
    visited |= reached;
    for (Lane lane : kLanes)
      if ((visited & ~before & Bit(lane)) != 0 && heads.head[lane]) reached |= Awaited(*heads.head[lane], heads.done);
  }
  for (Lane lane : kLanes)
    if (lane != Lane::kCompute && (reached & Bit(lane)) != 0 && heads.transferring[lane])
      return static_cast<int>(CommAxisOf(lane));
  return -1;
}

}  // namespace espalier
