// The number of finished instructions per lane of one rank in this step: the only state that the compute thread and the
// communication thread share.
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

/// Finished instructions by lane. One thread raises a lane; any thread may wait for it. A thread whose wait is met sees
/// everything that was written before that Raise().
class LaneCounts {
 public:
  /// Writes the counts to `progress` too, which must outlive this object, for readers elsewhere.
  void Mirror(Progress& progress) { progress_ = &progress; }

  /// The mirror, or this object's own counts.
  Progress& progress() const { return *progress_; }

  /// Starts a step. Nobody may be waiting.
  void Reset();

  int Count(Lane lane) const { return At(lane).count.load(std::memory_order_acquire); }
  bool Met(const Wait& wait) const { return Count(wait.lane) >= wait.count; }
  bool Met(std::span<const Wait> waits) const;

  /// Counts one more finished instruction of `lane`.
  void Raise(Lane lane);

  /// Returns once `wait` is met: polls for some microseconds, then sleeps, since there may be more ranks than cores.
  /// Throws InvariantError once Fail() was called.
  void Await(const Wait& wait);
  /// Like Await, but gives up after `limit`; true if the wait is met.
  bool AwaitFor(const Wait& wait, std::chrono::microseconds limit);

  /// True while a thread sleeps until a communication lane is raised, so that its core is idle.
  bool CommAwaited() const { return comm_awaited_.load() > 0; }
  /// For the thread that raises the communication lanes: sleeps until the compute lane reaches `compute`, a thread
  /// waits for communication, or `limit` is over.
  void Doze(int compute, std::chrono::microseconds limit);
  /// The number of copies that have ended on both lanes.
  int Copies() const { return copies_.load(); }
  /// For the same thread: sleeps until the compute lane reaches `compute`, more than `copies` copies have ended, or
  /// `limit` is over; false in the last case.
  bool AwaitComputeOrCopy(int compute, int copies, std::chrono::microseconds limit);

  /// The step has failed: every wait, now and later, throws.
  void Fail();
  bool Failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  static constexpr int kNobody = std::numeric_limits<int>::max();

  struct alignas(64) State {
    std::atomic<int> count{0};
    /// The smallest count that a sleeper waits for: lower counts wake nobody.
    std::atomic<int> wake_at{kNobody};
    std::mutex mutex;
    std::condition_variable raised;
  };

  const State& At(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }
  State& At(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }
  /// Polls for a short time; true if the wait is met.
  bool Spin(const Wait& wait) const;

  template <typename Until>
  bool Sleep(State& state, const Wait& wait, std::chrono::microseconds limit, Until until);

  std::array<State, kLaneCount> lanes_;
  Progress own_;
  Progress* progress_ = &own_;  ///< always written: a store per instruction is cheaper than a test
  std::atomic<int> comm_awaited_{0};
  std::atomic<int> copies_{0};  ///< written with the mutex of the compute lane
  std::atomic<bool> failed_{false};
};

}  // namespace espalier
