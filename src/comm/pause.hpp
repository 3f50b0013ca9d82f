// How to wait for something that only polling shows, with more threads than cores.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace espalier {

/// Tells the core that this is a waiting loop.
inline void RelaxCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

/// The time between two polls: first none, then the core is offered to others, then naps that grow with the time
/// already waited, so that they add at most an eighth to it and cost little of a core that others need.
class Pause {
 public:
  /// `shared_core`: other threads want this core, so nap soon.
  explicit Pause(bool shared_core)
      : looks_(shared_core ? 4 : 2000), longest_nap_(std::chrono::microseconds(shared_core ? 200 : 20)) {}

  /// Something moved: poll eagerly again.
  void Reset() { polls_ = 0; }

  /// When somebody's core stands still until what is polled for has come.
  void Rest() {
    Count();
    if (polls_ <= looks_) {
      sched_yield();
      return;
    }
    const auto nap = std::min<std::chrono::nanoseconds>(Waited() / 8, longest_nap_);
    const timespec time{0, nap.count()};
    nanosleep(&time, nullptr);
  }

  /// How long to sleep, up to `longest`, when nobody here waits for it yet.
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

  int looks_;
  std::chrono::nanoseconds longest_nap_;
  int polls_ = 0;
  Clock::time_point since_;
};

}  // namespace espalier
