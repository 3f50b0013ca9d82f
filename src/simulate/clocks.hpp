// The clocks of all classes of ranks, from the start of a step to its end.
//
// Time goes from one moment to the next. At a moment all kernels and transfers that end there are finished, and lanes
// advance as far as they can, in any order: the state at the end of the moment does not depend on the order. Only then
// are rates set. So nothing depends on the order of events of equal times, and ranks of one colour stay equal to the
// bit.
#pragma once

#include <vector>

#include "simulate/clock_state.hpp"
#include "simulate/event_queue.hpp"

namespace espalier::simulate {

class Clocks {
 public:
  /// `world` and `cluster` outlive it.
  Clocks(const World& world, const Cluster& cluster, const SimulateOptions& options);

  /// Runs to the end. Throws InvariantError if programs do not match, or on a deadlock.
  void Run();

  const std::vector<ClockState>& states() const { return clocks_; }
  double now_us() const { return now_us_; }
  int64_t finished() const { return finished_; }
  /// By clock, in the order of their ends; empty unless recorded.
  std::vector<std::vector<Span>>& spans() { return spans_; }

 private:
  // Lanes advance as far as they can.
  void Advance(int clock, int lane);
  void StartKernel(int clock);
  void StartCopy(int clock, int lane);
  void ArriveAtGroup(int clock, int lane);
  void ArriveAtPair(int clock, int lane);
  void Finish(int clock, int lane);
  void FinishAll();

  // Transfers.
  void Begin(uint32_t transfer);
  void TouchOtherWay(uint32_t transfer);
  void End(uint32_t transfer);
  template <typename Visit>
  void ForEachMember(uint32_t transfer, Visit visit);
  void Occupy(ClockState& clock, int lane, int by);

  // Rates, at the end of each moment.
  void Settle();
  void CountSharers(ClockState& clock);
  void SetKernelRate(int clock);
  void SetTransferRate(uint32_t transfer);
  double ShareOf(uint32_t transfer) const;
  uint32_t CopyOf(int clock, int lane) const;
  uint32_t FirstCopy() const { return groups_ + static_cast<uint32_t>(clocks_.size()); }
  bool IsCopy(uint32_t transfer) const { return transfer >= FirstCopy(); }
  /// The copy of the same rank in the other direction.
  uint32_t OtherWay(uint32_t copy) const { return FirstCopy() + ((copy - FirstCopy()) ^ 1u); }

  void Touch(int clock);
  double JitterOf(int clock, int item) const;

  const World& world_;
  const SimulateOptions& options_;
  std::array<double, 4> kernel_rates_{};  ///< by busy ports: node 1, network 2
  uint32_t groups_;

  double now_us_ = 0;
  int64_t finished_ = 0;
  std::vector<ClockState> clocks_;
  std::vector<Meeting> transfers_;  ///< of groups, then of pairs by their sender, then copies by clock: out and in
  EventQueue events_;               ///< activities: kernels by clock, then transfers

  std::vector<uint32_t> finishing_;  ///< clock * kLanesOfClock + lane
  std::vector<int> touched_;
  std::vector<uint32_t> dirty_;

  struct LaneTimes {
    ByLane<double> ready_us{}, begin_us{};
  };
  std::vector<LaneTimes> times_;  ///< empty unless recorded
  std::vector<std::vector<Span>> spans_;
};

}  // namespace espalier::simulate
