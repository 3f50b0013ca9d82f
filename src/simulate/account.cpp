#include "simulate/clock_state.hpp"

namespace espalier::simulate {
namespace {

/// By lane: the bit of its axis.
constexpr std::array<uint8_t, kLaneCount> kAxisOfLane = [] {
  std::array<uint8_t, kLaneCount> axes{};
  for (Lane lane : kLanes)
    if (lane != Lane::kCompute) axes[static_cast<size_t>(lane)] = static_cast<uint8_t>(CommAxisOf(lane));
  return axes;
}();

int AxisOf(LaneBits lanes) { return kAxisOfLane[static_cast<size_t>(FirstOf(lanes))]; }

/// The axis that blocks the compute lane, which is not running, or -1.
int Exposed(const ClockState& clock) {
  if (clock.transferring == 0) return -1;
  if (clock.state[kCompute] == LaneState::kEnded) return AxisOf(clock.transferring);
  LaneBits reached = Awaited(clock, kCompute), visited = Bit(kCompute);
  while (const LaneBits next = reached & static_cast<LaneBits>(~visited)) {
    const int lane = FirstOf(next);
    visited |= Bit(lane);
    if (clock.state[static_cast<size_t>(lane)] == LaneState::kBlocked) reached |= Awaited(clock, lane);
  }
  const LaneBits found = reached & clock.transferring;
  return found != 0 ? AxisOf(found) : -1;
}

void Add(ClockState& clock, double us) {
  if (clock.computes)
    clock.total.compute_us += us;
  else if (clock.exposed < 0)
    clock.total.idle_us += us;
  if (clock.axes == 0) return;
  for (int axis = 0; axis < kCommAxisCount; ++axis)
    if ((clock.axes >> axis & 1) != 0)
      (axis == clock.exposed ? clock.total.exposed_us : clock.total.hidden_us)[static_cast<size_t>(axis)] += us;
}

}  // namespace

void Account(ClockState& clock, double now_us) {
  if (now_us > clock.accounted_us) Add(clock, now_us - clock.accounted_us);
  clock.accounted_us = now_us;
  clock.computes = clock.state[kCompute] == LaneState::kRuns;
  clock.exposed = static_cast<int8_t>(clock.computes ? -1 : Exposed(clock));
  clock.axes = 0;
  for (LaneBits lanes = clock.transferring; lanes != 0; lanes &= lanes - 1)
    clock.axes |= static_cast<uint8_t>(1u << AxisOf(lanes));
}

}  // namespace espalier::simulate
