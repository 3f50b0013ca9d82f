// Transfers and rates. k transfers at one port of a rank, in the same direction, get 1 / k of its rate each; links are
// full duplex, so a send and a recv do not share. A transfer runs at the smallest share of its members. Copies to and
// from the host share its memory if they run both ways at the same time. Kernels slow down while a transfer of their
// rank is in progress at the node's or the network's port.
#include <algorithm>

#include "simulate/clocks.hpp"

namespace espalier::simulate {

template <typename Visit>
void Clocks::ForEachMember(uint32_t transfer, Visit visit) {
  if (transfer < groups_) {
    const int lane = static_cast<int>(world_.lane_of_group[transfer]);
    for (int m = world_.first_member[transfer]; m < world_.first_member[transfer + 1]; ++m)
      visit(world_.members[static_cast<size_t>(m)], lane);
  } else if (IsCopy(transfer)) {
    visit(transfers_[transfer].first, transfer == CopyOf(transfers_[transfer].first, kCopyOut) ? kCopyOut : kCopyIn);
  } else {
    visit(static_cast<int>(transfer - groups_), kPpSend);
    visit(transfers_[transfer].first, kPpRecv);
  }
}

/// `by` is 1 when a transfer begins and -1 when it ends.
void Clocks::Occupy(ClockState& c, int lane, int by) {
  const Port port = c.costs->Of(c.HeadOf(lane)).port;
  if (port == Port::kNone) return;
  std::array<uint8_t, 2>& load = c.load[port == Port::kNode ? 0 : 1];
  if (lane != kPpRecv) load[0] = static_cast<uint8_t>(load[0] + by);
  if (lane != kPpSend) load[1] = static_cast<uint8_t>(load[1] + by);
}

void Clocks::Begin(uint32_t transfer) {
  Meeting& t = transfers_[transfer];
  t.arrived = 0;
  t.left_us = t.work_us * t.slow;
  const bool at_once = t.left_us == 0;
  ForEachMember(transfer, [&](int clock, int lane) {
    ClockState& c = clocks_[static_cast<size_t>(clock)];
    const auto l = static_cast<size_t>(lane);
    c.state[l] = LaneState::kRuns;
    if (!times_.empty()) times_[static_cast<size_t>(clock)].begin_us[l] = now_us_;
    if (at_once) {
      finishing_.push_back(static_cast<uint32_t>(clock) * kLanesOfClock + static_cast<uint32_t>(lane));
      return;
    }
    c.transferring |= Bit(lane);
    c.transfer[l] = transfer;
    c.sharers[l] = 0;
    Occupy(c, lane, 1);
    Touch(clock);
  });
  if (at_once) return;
  ++t.version;
  t.flying = t.dirty = true;
  t.share = 0;
  t.sharers.fill(0);
  dirty_.push_back(transfer);
  TouchOtherWay(transfer);
}

/// A copy changes the rate of the one in the other direction.
void Clocks::TouchOtherWay(uint32_t transfer) {
  if (!IsCopy(transfer)) return;
  Meeting& other = transfers_[OtherWay(transfer)];
  if (other.flying && !std::exchange(other.dirty, true)) dirty_.push_back(OtherWay(transfer));
}

void Clocks::End(uint32_t transfer) {
  transfers_[transfer].flying = false;
  TouchOtherWay(transfer);
  ForEachMember(transfer, [&](int clock, int lane) {
    ClockState& c = clocks_[static_cast<size_t>(clock)];
    c.transferring &= static_cast<LaneBits>(~Bit(lane));
    Occupy(c, lane, -1);
    finishing_.push_back(static_cast<uint32_t>(clock) * kLanesOfClock + static_cast<uint32_t>(lane));
  });
}

void Clocks::Settle() {
  for (int clock : touched_) {
    ClockState& c = clocks_[static_cast<size_t>(clock)];
    c.touched = false;
    Account(c, now_us_);
    if (options_.interference) CountSharers(c);
    if (c.state[kCompute] == LaneState::kRuns) SetKernelRate(clock);
  }
  touched_.clear();
  for (uint32_t transfer : dirty_) SetTransferRate(transfer);
  dirty_.clear();
}

void Clocks::CountSharers(ClockState& c) {
  for (LaneBits lanes = c.transferring; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<size_t>(FirstOf(lanes));
    const Port port = c.costs->Of(c.HeadOf(static_cast<int>(lane))).port;
    if (port == Port::kNone) continue;
    const auto [out, in] = c.load[port == Port::kNode ? 0 : 1];
    const uint8_t sharers = lane == kPpSend ? out : lane == kPpRecv ? in : std::max(out, in);
    if (sharers == c.sharers[lane]) continue;
    Meeting& t = transfers_[c.transfer[lane]];
    if (c.sharers[lane] > 0) --t.sharers[c.sharers[lane]];
    ++t.sharers[sharers];
    c.sharers[lane] = sharers;
    if (!std::exchange(t.dirty, true)) dirty_.push_back(c.transfer[lane]);
  }
}

void Clocks::SetKernelRate(int clock) {
  ClockState& c = clocks_[static_cast<size_t>(clock)];
  double rate = 1;
  if (options_.interference) {
    const auto busy = [&](size_t port) { return c.load[port][0] + c.load[port][1] > 0; };
    rate = kernel_rates_[(busy(0) ? 1u : 0u) + (busy(1) ? 2u : 0u)];
  }
  if (rate == c.rate) return;
  if (c.rate > 0) {
    c.left_us = std::max(0.0, c.left_us - c.rate * (now_us_ - c.since_us));
    ++c.version;
  }
  c.rate = rate;
  c.since_us = now_us_;
  events_.Push({now_us_ + c.left_us / rate, static_cast<uint32_t>(clock), c.version});
}

/// The number of transfers that share the busiest port of the members; for a copy, how much longer it takes.
double Clocks::ShareOf(uint32_t transfer) const {
  const Meeting& t = transfers_[transfer];
  if (IsCopy(transfer)) return options_.interference && transfers_[OtherWay(transfer)].flying ? t.beside : 1;
  int share = 1;
  for (int k = kLaneCount - 1; k > 1 && share == 1; --k)
    if (t.sharers[static_cast<size_t>(k)] > 0) share = k;
  return share;
}

void Clocks::SetTransferRate(uint32_t transfer) {
  Meeting& t = transfers_[transfer];
  t.dirty = false;
  if (!t.flying) return;
  const double share = ShareOf(transfer);
  if (share == t.share) return;
  if (t.share > 0) {
    t.left_us = std::max(0.0, t.left_us - (now_us_ - t.since_us) / t.share);
    ++t.version;
  }
  t.share = share;
  t.since_us = now_us_;
  events_.Push({now_us_ + t.left_us * share, static_cast<uint32_t>(clocks_.size()) + transfer, t.version});
}

}  // namespace espalier::simulate
