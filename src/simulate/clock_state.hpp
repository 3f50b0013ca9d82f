// The current state of a clock and of a transfer.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "simulate/world.hpp"

namespace espalier::simulate {

inline constexpr int kCompute = static_cast<int>(Lane::kCompute), kPpSend = static_cast<int>(Lane::kPpSend),
                     kPpRecv = static_cast<int>(Lane::kPpRecv), kCopyOut = static_cast<int>(Lane::kCopyOut),
                     kCopyIn = static_cast<int>(Lane::kCopyIn);
inline constexpr uint32_t kCopiesOfClock = 2;  ///< at the same time: out and in

enum class LaneState : uint8_t {
  kBlocked,  ///< waits for other lanes
  kMeets,    ///< waits for the peers of its head
  kRuns,
  kEnded,
};

/// Set of lanes, one bit each.
using LaneBits = uint16_t;
constexpr LaneBits Bit(int lane) { return static_cast<LaneBits>(1u << lane); }
/// Activities are numbered by clock and lane.
inline constexpr uint32_t kLanesOfClock = 16;
static_assert(kLaneCount <= kLanesOfClock);
constexpr int FirstOf(LaneBits lanes) { return std::countr_zero(lanes); }

struct ClockState {
  const LaneItems* items = nullptr;
  const ItemCosts* costs = nullptr;
  std::array<int, kLaneCount> done{};           ///< finished instructions
  std::array<uint32_t, kLaneCount> transfer{};  ///< transfer per lane in `transferring`
  std::array<LaneState, kLaneCount> state{};
  std::array<LaneBits, kLaneCount> waiters{};  ///< by lane: lanes that it blocks
  std::array<uint8_t, kLaneCount> sharers{};   ///< per lane in `transferring`: transfers at its port, itself included
  LaneBits transferring = 0;
  bool touched = false;                          ///< something changed at the current moment
  std::array<std::array<uint8_t, 2>, 2> load{};  ///< transfers by port (node, network) and direction (out, in)

  uint32_t version = 0;  ///< version of the event at which the kernel ends
  double rate = 0;       ///< rate of the kernel; 0: not set yet
  double left_us = 0;    ///< time left for the kernel at rate 1, from `since_us`
  double since_us = 0;

  // The breakdown up to `accounted_us`, and the activities since then.
  double accounted_us = 0;
  Breakdown total;
  ByStepPart<PartTimes> parts{};
  int8_t exposed = -1;         ///< CommAxis or -1
  uint8_t axes = 0;            ///< bits of the CommAxes that transfer
  uint8_t transfer_parts = 0;  ///< bits of the StepParts that transfer
  StepPart part = {};          ///< part of the kernel, or of the exposed transfer
  bool computes = false;
  double end_us = 0;  ///< end of the last instruction so far

  int HeadOf(int lane) const { return items->begin[static_cast<size_t>(lane)] + done[static_cast<size_t>(lane)]; }
  const Item& Head(int lane) const { return items->items[static_cast<size_t>(HeadOf(lane))]; }
};

/// A collective of a group or a message of a pair, which synchronizes clocks; or a copy to or from the host.
struct Meeting {
  double work_us = 0;  ///< the highest cost of its members
  double slow = 1;     ///< the highest factor of its members
  double left_us = 0;  ///< remaining time without sharing ports, from `since_us`
  double since_us = 0;
  uint32_t version = 0;
  uint32_t arrived = 0;  ///< members whose lanes have reached it
  int first = -1;        ///< the member that arrived first; for a pair: the receiver
  double share = 0;      ///< it gets 1 / share of its ports, or of its memory; 0: not started
  double beside = 1;     ///< of a copy: `share` while one goes the other way
  bool flying = false;
  bool dirty = false;
  std::array<uint32_t, kLaneCount> sharers{};  ///< by number of transfers at a port: members with this number there
};

/// The lanes that the head of `lane` waits for now.
inline LaneBits Awaited(const ClockState& clock, int lane) {
  const Item& head = clock.Head(lane);
  LaneBits lanes = 0;
  for (uint32_t w = head.first_wait; w < head.first_wait + head.waits; ++w) {
    const Wait& wait = clock.items->waits[w];
    if (clock.done[static_cast<size_t>(wait.lane)] < wait.count) lanes |= Bit(static_cast<int>(wait.lane));
  }
  return lanes;
}

/// Adds the time up to `now_us` to the breakdown, then classifies the time from now on by ExposedAxis.
void Account(ClockState& clock, double now_us);

/// For every lane that is not at its end, what it waits for: the message of a deadlock.
std::string DescribeStuck(const World& world, const std::vector<ClockState>& clocks);

/// "rank 3, lane tp, instruction 12 (all_gather, role F, microbatch 0, layer 1)".
std::string DescribeHead(const World& world, const std::vector<ClockState>& clocks, int clock, int lane);

}  // namespace espalier::simulate
