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

int AxisOf(int lane) { return kAxisOfLane[static_cast<size_t>(lane)]; }

/// The lane whose transfer blocks the compute lane, which is not running, or -1.
int Exposed(const ClockState& clock) {
  if (clock.transferring == 0) return -1;
  if (clock.state[kCompute] == LaneState::kEnded) return FirstOf(clock.transferring);
  LaneBits reached = Awaited(clock, kCompute), visited = Bit(kCompute);
  while (const LaneBits next = reached & static_cast<LaneBits>(~visited)) {
    const int lane = FirstOf(next);
    visited |= Bit(lane);
    if (clock.state[static_cast<size_t>(lane)] == LaneState::kBlocked) reached |= Awaited(clock, lane);
  }
  const LaneBits found = reached & clock.transferring;
  return found != 0 ? FirstOf(found) : -1;
}

void Add(ClockState& clock, double us) {
  const bool exposes = !clock.computes && clock.exposed >= 0;
  if (clock.computes) {
    clock.total.compute_us += us;
    clock.parts[clock.part].kernels_us += us;
  } else if (!exposes) {
    clock.total.idle_us += us;
  }
  if (clock.axes == 0) return;
  for (int axis = 0; axis < kCommAxisCount; ++axis)
    if ((clock.axes >> axis & 1) != 0)
      (axis == clock.exposed ? clock.total.exposed_us : clock.total.hidden_us)[static_cast<size_t>(axis)] += us;
  for (unsigned parts = clock.transfer_parts; parts != 0; parts &= parts - 1) {
    const auto part = static_cast<StepPart>(std::countr_zero(parts));
    (exposes && part == clock.part ? clock.parts[part].exposed_us : clock.parts[part].hidden_us) += us;
  }
}

}  // namespace

void Account(ClockState& clock, double now_us) {
  if (now_us > clock.accounted_us) Add(clock, now_us - clock.accounted_us);
  clock.accounted_us = now_us;
  clock.computes = clock.state[kCompute] == LaneState::kRuns;
  const int exposed = clock.computes ? -1 : Exposed(clock);
  clock.exposed = static_cast<int8_t>(exposed < 0 ? -1 : AxisOf(exposed));
  if (clock.computes || exposed >= 0) clock.part = clock.Head(clock.computes ? kCompute : exposed).part;
  clock.axes = clock.transfer_parts = 0;
  for (LaneBits lanes = clock.transferring; lanes != 0; lanes &= lanes - 1) {
    const int lane = FirstOf(lanes);
    clock.axes |= static_cast<uint8_t>(1u << AxisOf(lane));
    clock.transfer_parts |= static_cast<uint8_t>(1u << static_cast<int>(clock.Head(lane).part));
  }
}

}  // namespace espalier::simulate
