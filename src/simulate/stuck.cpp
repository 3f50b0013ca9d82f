#include <fmt/core.h>

#include "espalier/program/compile.hpp"
#include "simulate/clock_state.hpp"

namespace espalier::simulate {
namespace {

std::string WaitsText(const ClockState& clock, int lane) {
  const Item& head = clock.Head(lane);
  std::string text;
  for (uint32_t w = head.first_wait; w < head.first_wait + head.waits; ++w) {
    const Wait& wait = clock.items->waits[w];
    const int done = clock.done[static_cast<size_t>(wait.lane)];
    if (done < wait.count)
      text += fmt::format("{}instruction {} of lane {}, which has finished {}", text.empty() ? "" : " and ", wait.count,
                          Name(wait.lane), done);
  }
  return text;
}

/// The peers of a transfer that have not arrived.
std::string AbsentText(const World& world, const std::vector<ClockState>& clocks, int clock, int lane) {
  constexpr int kNamed = 4;
  const auto rank_of = [&](int member) { return world.clocks[static_cast<size_t>(member)].rank; };
  const Item& head = clocks[static_cast<size_t>(clock)].Head(lane);
  if (head.kind != ItemKind::kGroup) return fmt::format("rank {}", rank_of(world.PeerOf(clock, head.link)));
  const auto group = static_cast<size_t>(world.GroupOf(clock, head.link));
  std::string text;
  int absent = 0;
  for (int m = world.first_member[group]; m < world.first_member[group + 1]; ++m) {
    const int member = world.members[static_cast<size_t>(m)];
    const ClockState& other = clocks[static_cast<size_t>(member)];
    const bool there = other.state[static_cast<size_t>(lane)] == LaneState::kMeets &&
                       other.Head(lane).kind == ItemKind::kGroup &&
                       world.GroupOf(member, other.Head(lane).link) == static_cast<int>(group);
    if (!there && absent++ < kNamed) text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rank_of(member));
  }
  return text + (absent > kNamed ? fmt::format(" and {} more", absent - kNamed) : "");
}

}  // namespace

std::string DescribeHead(const World& world, const std::vector<ClockState>& clocks, int clock, int lane) {
  const ClockState& c = clocks[static_cast<size_t>(clock)];
  return fmt::format("rank {}, lane {}, {}", world.clocks[static_cast<size_t>(clock)].rank,
                     Name(static_cast<Lane>(lane)),
                     Describe(*c.items->program, c.items->instruction[static_cast<size_t>(c.HeadOf(lane))]));
}

std::string DescribeStuck(const World& world, const std::vector<ClockState>& clocks) {
  constexpr int kNamed = 24;
  std::string text;
  int stuck = 0;
  for (size_t clock = 0; clock < clocks.size(); ++clock)
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const LaneState state = clocks[clock].state[static_cast<size_t>(lane)];
      if (state == LaneState::kEnded || stuck++ >= kNamed) continue;
      const int c = static_cast<int>(clock);
      text += fmt::format(
          "\n  {}: waits for {}", DescribeHead(world, clocks, c, lane),
          state == LaneState::kBlocked ? WaitsText(clocks[clock], lane) : AbsentText(world, clocks, c, lane));
    }
  if (stuck > kNamed) text += fmt::format("\n  and {} more lanes", stuck - kNamed);
  return text;
}

}  // namespace espalier::simulate
