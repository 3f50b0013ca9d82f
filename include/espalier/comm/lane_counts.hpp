// How far each lane of one rank has come in this step: the only thing through which the compute thread and the
// communication thread know of each other.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <span>

#include "espalier/comm/progress.hpp"

namespace espalier {

/// Finished instructions by lane. A lane is raised by one thread; any may wait for it. What was written before Raise()
/// is seen after the wait that it meets.
class LaneCounts {
 public:
  /// From now on `progress`, which must outlive it, says the same to readers elsewhere.
  void Mirror(Progress& progress) { progress_ = &progress; }

  /// The one that is mirrored, or its own.
  Progress& progress() const { return *progress_; }

  /// Starts a step. Nobody may be waiting.
  void Reset();

  int Count(Lane lane) const { return At(lane).count.load(std::memory_order_acquire); }
  bool Met(const Wait& wait) const { return Count(wait.lane) >= wait.count; }
  bool Met(std::span<const Wait> waits) const;

  /// One more instruction of `lane` is finished.
  void Raise(Lane lane);

  /// Returns once `wait` is met: looks for some microseconds, then sleeps, since ranks may exceed cores. Throws
  /// InvariantError once Fail() was called.
  void Await(const Wait& wait);
  /// As Await, but gives up after `limit`; true if the wait is met.
  bool AwaitFor(const Wait& wait, std::chrono::microseconds limit);

  /// True while a thread sleeps until a communication lane is raised: its core stands still.
  bool CommAwaited() const { return comm_awaited_.load() > 0; }
  /// For the thread that raises the communication lanes: sleeps until the compute lane reaches `compute`, or somebody
  /// waits for communication, or `limit` is over.
  void Doze(int compute, std::chrono::microseconds limit);

  /// The step cannot be finished: every wait, now and later, throws.
  void Fail();
  bool Failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  static constexpr int kNobody = std::numeric_limits<int>::max();

  struct alignas(64) State {
    std::atomic<int> count{0};
    /// The least count that a sleeper waits for: no one is woken for less.
    std::atomic<int> wake_at{kNobody};
    std::mutex mutex;
    std::condition_variable raised;
  };

  const State& At(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }
  State& At(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }
  /// True if met soon, without sleeping.
  bool Spin(const Wait& wait) const;

  template <typename Until>
  bool Sleep(State& state, const Wait& wait, std::chrono::microseconds limit, Until until);

  std::array<State, kLaneCount> lanes_;
  Progress own_;
  Progress* progress_ = &own_;  ///< a store an instruction is cheaper than to ask whether somebody reads
  std::atomic<int> comm_awaited_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace espalier
