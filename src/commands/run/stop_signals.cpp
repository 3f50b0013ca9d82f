#include "commands/run/stop_signals.hpp"

#include <signal.h>
#include <time.h>

#include <atomic>
#include <cerrno>

namespace espalier {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
constexpr int64_t kImpatienceSeconds = 10;

// Handlers may touch nothing but lock-free atomics.
std::atomic<int> first_signal = 0;
std::atomic<int64_t> interrupted_at = 0;  ///< seconds of the monotonic clock; 0: never
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t Seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1;
}

void Act(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // no system call of a save fails for it
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

bool Impatient() {
  const int64_t now = Seconds(), before = interrupted_at.exchange(now);
  return before != 0 && now - before <= kImpatienceSeconds;
}

void Note(int signal) {
  const int error = errno;
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal == SIGINT && Impatient()) {
    Act(SIGINT, SIG_DFL);
    ::raise(SIGINT);  // held back until this handler returns
  }
  errno = error;
}

}  // namespace

void CatchStopSignals() {
  for (int signal : kSignals) Act(signal, Note);
}

void ReleaseStopSignals() {
  for (int signal : kSignals) Act(signal, SIG_DFL);
  if (const int signal = StopSignal(); signal != 0) ::raise(signal);
}

int StopSignal() { return first_signal; }

std::string StopSignalName(int signal) {
  switch (signal) {
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGUSR1: return "SIGUSR1";
    default: return "SIGUSR2";
  }
}

}  // namespace espalier
