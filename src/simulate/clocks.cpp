#include "simulate/clocks.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier::simulate {

Clocks::Clocks(const World& world, const Cluster& cluster, const SimulateOptions& options)
    : world_(world),
      options_(options),
      groups_(static_cast<uint32_t>(world.lane_of_group.size())),
      clocks_(world.clocks.size()),
      transfers_(groups_ + (1 + kCopiesOfClock) * clocks_.size()) {
  for (const double slowdown : {cluster.node_slowdown, cluster.network_slowdown})
    CHECK(0 <= slowdown && slowdown < 1, "a slowdown of {}", slowdown);
  for (int ports = 0; ports < 4; ++ports)
    kernel_rates_[static_cast<size_t>(ports)] =
        ((ports & 1) != 0 ? 1 - cluster.node_slowdown : 1) * ((ports & 2) != 0 ? 1 - cluster.network_slowdown : 1);
  for (size_t c = 0; c < clocks_.size(); ++c) {
    clocks_[c].items = &world.programs.items[static_cast<size_t>(world.clocks[c].program)];
    clocks_[c].costs = &world.costs[static_cast<size_t>(world.clocks[c].costs)];
  }
  if (!options.record) return;
  times_.resize(clocks_.size());
  spans_.resize(clocks_.size());
  for (size_t c = 0; c < clocks_.size(); ++c) spans_[c].reserve(clocks_[c].items->items.size());
}

void Clocks::Run() {
  for (int clock = 0; clock < std::ssize(clocks_); ++clock)
    for (int lane = 0; lane < kLaneCount; ++lane) Advance(clock, lane);
  FinishAll();
  Settle();
  const auto kernels = static_cast<uint32_t>(clocks_.size());
  while (!events_.Empty()) {
    const double us = events_.Top().us;
    bool moved = false;
    while (!events_.Empty() && events_.Top().us == us) {
      const auto [at, activity, version] = events_.Top();
      events_.Pop();
      if (activity < kernels) {
        if (clocks_[activity].version != version) continue;
        now_us_ = us;
        finishing_.push_back(activity * kLanesOfClock + kCompute);
      } else {
        if (transfers_[activity - kernels].version != version) continue;
        now_us_ = us;
        End(activity - kernels);
      }
      moved = true;
      FinishAll();
    }
    if (moved) Settle();
  }
  const bool done = std::ranges::all_of(clocks_, [](const ClockState& c) {
    return std::ranges::all_of(c.state, [](LaneState state) { return state == LaneState::kEnded; });
  });
  CHECK(done, "deadlock after {:.3f} us{}", now_us_, DescribeStuck(world_, clocks_));
  for (ClockState& clock : clocks_) Account(clock, now_us_);
}

void Clocks::Touch(int clock) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  if (c.touched) return;
  c.touched = true;
  touched_.push_back(clock);
}

void Clocks::Advance(int clock, int lane) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  const auto l = static_cast<size_t>(lane);
  if (c.done[l] == c.items->Length(lane)) {
    c.state[l] = LaneState::kEnded;
    return;
  }
  const Item& head = c.Head(lane);
  for (uint32_t w = head.first_wait; w < head.first_wait + head.waits; ++w) {
    const Wait& wait = c.items->waits[w];
    if (c.done[static_cast<size_t>(wait.lane)] >= wait.count) continue;
    c.state[l] = LaneState::kBlocked;
    c.waiters[static_cast<size_t>(wait.lane)] |= Bit(lane);
    return;
  }
  if (!times_.empty()) times_[static_cast<size_t>(clock)].ready_us[l] = now_us_;
  switch (head.kind) {
    case ItemKind::kKernel:
      return StartKernel(clock);
    case ItemKind::kCopy:
      return StartCopy(clock, lane);
    case ItemKind::kAlone:
      c.state[l] = LaneState::kRuns;
      if (!times_.empty()) times_[static_cast<size_t>(clock)].begin_us[l] = now_us_;
      finishing_.push_back(static_cast<uint32_t>(clock) * kLanesOfClock + static_cast<uint32_t>(lane));
      return;
    case ItemKind::kGroup:
      return ArriveAtGroup(clock, lane);
    case ItemKind::kSend:
    case ItemKind::kRecv:
      return ArriveAtPair(clock, lane);
  }
}

void Clocks::StartKernel(int clock) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  const int item = c.HeadOf(kCompute);
  double us = c.costs->Of(item).us * world_.clocks[static_cast<size_t>(clock)].slow_compute;
  if (options_.jitter > 0) us *= JitterOf(clock, item);
  c.state[kCompute] = LaneState::kRuns;
  c.left_us = us;
  c.rate = 0;
  ++c.version;
  if (!times_.empty()) times_[static_cast<size_t>(clock)].begin_us[kCompute] = now_us_;
  if (us == 0)
    finishing_.push_back(static_cast<uint32_t>(clock) * kLanesOfClock + kCompute);
  else
    Touch(clock);
}

uint32_t Clocks::CopyOf(int clock, int lane) const {
  return FirstCopy() + kCopiesOfClock * static_cast<uint32_t>(clock) + (lane == kCopyOut ? 0 : 1);
}

void Clocks::StartCopy(int clock, int lane) {
  const ClockState& c = clocks_[static_cast<size_t>(clock)];
  Meeting& t = transfers_[CopyOf(clock, lane)];
  t.first = clock;
  t.work_us = c.costs->Of(c.HeadOf(lane)).us;
  t.beside = c.costs->Of(c.HeadOf(lane)).beside;
  t.slow = world_.clocks[static_cast<size_t>(clock)].slow_links;
  Begin(CopyOf(clock, lane));
}

double Clocks::JitterOf(int clock, int item) const {
  constexpr double kMin = 0.1;
  const int64_t rank = world_.clocks[static_cast<size_t>(clock)].rank;
  const int instruction = clocks_[static_cast<size_t>(clock)].items->instruction[static_cast<size_t>(item)];
  const double normal =
      NormalAt(static_cast<int64_t>(options_.seed), "simulate.jitter", rank << 32 | static_cast<int64_t>(instruction));
  return std::max(kMin, 1 + options_.jitter * normal);
}

void Clocks::ArriveAtGroup(int clock, int lane) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  const Item& head = c.Head(lane);
  const auto group = static_cast<size_t>(world_.GroupOf(clock, head.link));
  Meeting& t = transfers_[group];
  c.state[static_cast<size_t>(lane)] = LaneState::kMeets;
  const double us = c.costs->Of(c.HeadOf(lane)).us;
  const double slow = world_.clocks[static_cast<size_t>(clock)].slow_links;
  if (t.arrived == 0) {
    t.first = clock;
    t.work_us = us;
    t.slow = slow;
  } else {
    const Item& other = clocks_[static_cast<size_t>(t.first)].Head(lane);
    CHECK(other.op == head.op && other.microbatch == head.microbatch, "{} meets {}",
          DescribeHead(world_, clocks_, clock, lane), DescribeHead(world_, clocks_, t.first, lane));
    t.work_us = std::max(t.work_us, us);
    t.slow = std::max(t.slow, slow);
  }
  if (static_cast<int>(++t.arrived) == world_.first_member[group + 1] - world_.first_member[group])
    Begin(static_cast<uint32_t>(group));
}

void Clocks::ArriveAtPair(int clock, int lane) {
  clocks_[static_cast<size_t>(clock)].state[static_cast<size_t>(lane)] = LaneState::kMeets;
  const int peer_lane = lane == kPpSend ? kPpRecv : kPpSend;
  const int peer = world_.PeerOf(clock, clocks_[static_cast<size_t>(clock)].Head(lane).link);
  const ClockState& p = clocks_[static_cast<size_t>(peer)];
  if (p.state[static_cast<size_t>(peer_lane)] != LaneState::kMeets) return;
  if (world_.PeerOf(peer, p.Head(peer_lane).link) != clock) return;
  const int sender = lane == kPpSend ? clock : peer, receiver = lane == kPpSend ? peer : clock;
  const ClockState &s = clocks_[static_cast<size_t>(sender)], &r = clocks_[static_cast<size_t>(receiver)];
  const Item &send = s.Head(kPpSend), &recv = r.Head(kPpRecv);
  CHECK(send.op + 1 == recv.op && send.microbatch == recv.microbatch, "{} meets {}",
        DescribeHead(world_, clocks_, sender, kPpSend), DescribeHead(world_, clocks_, receiver, kPpRecv));
  Meeting& t = transfers_[groups_ + static_cast<size_t>(sender)];
  t.first = receiver;
  t.work_us = std::max(s.costs->Of(s.HeadOf(kPpSend)).us, r.costs->Of(r.HeadOf(kPpRecv)).us);
  t.slow = std::max(world_.clocks[static_cast<size_t>(sender)].slow_links,
                    world_.clocks[static_cast<size_t>(receiver)].slow_links);
  Begin(groups_ + static_cast<uint32_t>(sender));
}

void Clocks::Finish(int clock, int lane) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  const auto l = static_cast<size_t>(lane);
  if (!times_.empty()) {
    const LaneTimes& times = times_[static_cast<size_t>(clock)];
    const int instruction = c.items->instruction[static_cast<size_t>(c.HeadOf(lane))];
    spans_[static_cast<size_t>(clock)].push_back({instruction, times.ready_us[l], times.begin_us[l], now_us_});
  }
  Touch(clock);
  ++finished_;
  ++c.done[l];
  c.end_us = now_us_;
  Advance(clock, lane);
  for (LaneBits lanes = std::exchange(c.waiters[l], LaneBits{0}); lanes != 0; lanes &= lanes - 1)
    Advance(clock, FirstOf(lanes));
}

void Clocks::FinishAll() {
  while (!finishing_.empty()) {
    const uint32_t next = finishing_.back();
    finishing_.pop_back();
    Finish(static_cast<int>(next / kLanesOfClock), static_cast<int>(next % kLanesOfClock));
  }
}

}  // namespace espalier::simulate
