// Waits for a condition that must be polled, with more threads than cores.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace espalier {

/// Tells the core that this is a spin loop.
inline void RelaxCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

/// The time between two polls: first none, then a yield, then sleeps that grow with the time already waited. They add
/// at most an eighth to it, and leave most of the core to other threads.
class Pause {
 public:
  /// `shared_core`: other threads need this core, so sleep soon.
  explicit Pause(bool shared_core)
      : polls_before_sleep_(shared_core ? 4 : 2000),
        longest_sleep_(std::chrono::microseconds(shared_core ? 200 : 20)) {}
  /// Sleeps soon, and up to `longest_sleep`.
  explicit Pause(std::chrono::nanoseconds longest_sleep) : polls_before_sleep_(4), longest_sleep_(longest_sleep) {}

  /// There was progress: poll eagerly again.
  void Reset() { polls_ = 0; }

  /// Waits while another thread's core is idle until the poll succeeds, for at most `limit`.
  void Rest(std::chrono::nanoseconds limit = std::chrono::nanoseconds::max()) {
    Count();
    if (polls_ <= polls_before_sleep_) {
      sched_yield();
      return;
    }
    const auto sleep = std::min({Waited() / 8, longest_sleep_, limit});
    const timespec time{0, sleep.count()};
    nanosleep(&time, nullptr);
  }

  /// How long to sleep, up to `longest`, while no thread of this rank waits for the poll.
  std::chrono::microseconds Doze(std::chrono::microseconds longest) {
    using std::chrono::microseconds;
    Count();
    return std::clamp(std::chrono::duration_cast<microseconds>(Waited() / 8), microseconds(20), longest);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Count() {
    if (polls_++ == 0) since_ = Clock::now();
  }
  std::chrono::nanoseconds Waited() const { return Clock::now() - since_; }

  int polls_before_sleep_;
  std::chrono::nanoseconds longest_sleep_;
  int polls_ = 0;
  Clock::time_point since_;
};

}  // namespace espalier
