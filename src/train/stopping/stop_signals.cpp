#include "espalier/train/stop_signals.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

namespace espalier {
namespace {

struct NamedSignal {
  int number;
  const char* name;
};
constexpr NamedSignal kStops[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"},
                                  {SIGUSR2, "SIGUSR2"}, {SIGHUP, "SIGHUP"}, {SIGXCPU, "SIGXCPU"}};
// The failing call also returns an error (EPIPE, EFBIG), which is reported.
constexpr int kErrorsOfCalls[] = {SIGPIPE, SIGXFSZ};
constexpr int64_t kImpatienceSeconds = 10;

struct IgnoredAtStart {
  bool hangup = false, pipe = false;
} ignored_at_start;  // by nohup, or by a shell that starts it in the background

// Handlers may touch nothing but lock-free atomics.
std::atomic<int> first_signal = 0;
std::atomic<bool> says = false;
std::atomic<int64_t> interrupted_at = 0;  ///< seconds of the monotonic clock; 0: never
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

int64_t Seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1;
}

void Act(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // so that no system call of a save fails because of the signal
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

sigset_t Stops() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const NamedSignal& stop : kStops) ::sigaddset(&set, stop.number);
  return set;
}

bool Ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// If the soft limit of processor time equals the hard one, SIGXCPU would arrive together with the end; a soft limit a
/// tenth lower leaves time to save.
void KeepProcessorTimeForASave() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY || limit.rlim_cur < limit.rlim_max ||
      limit.rlim_max < 2)
    return;
  limit.rlim_cur = limit.rlim_max - std::clamp<rlim_t>(limit.rlim_max / 10, 1, limit.rlim_max - 1);
  ::setrlimit(RLIMIT_CPU, &limit);
}

bool Impatient() {
  const int64_t now = Seconds(), before = interrupted_at.exchange(now);
  return before != 0 && now - before <= kImpatienceSeconds;
}

/// A single write: a handler may not print in any other way.
void Say(int signal) {
  char line[80];
  size_t length = 0;
  const auto append = [&](const char* text) {
    while (*text != '\0' && length < sizeof line) line[length++] = *text++;
  };
  append("espalier: stop asked by ");
  for (const NamedSignal& stop : kStops)
    if (stop.number == signal) append(stop.name);
  append(": the run ends after this step\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length);
}

void Note(int signal) {
  const int error = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) && says) Say(signal);
  if (signal == SIGINT && Impatient()) {
    Act(SIGINT, SIG_DFL);
    ::raise(SIGINT);  // blocked until this handler returns
  }
  errno = error;
}

}  // namespace

void CatchStopSignals() {
  static const bool hangup_ignored = Ignored(SIGHUP), pipe_ignored = Ignored(SIGPIPE);
  ignored_at_start = {hangup_ignored, pipe_ignored};
  for (const NamedSignal& stop : kStops)
    if (stop.number != SIGHUP || !hangup_ignored) Act(stop.number, Note);
  for (int signal : kErrorsOfCalls) Act(signal, SIG_IGN);
  const sigset_t stops = Stops();
  ::sigprocmask(SIG_UNBLOCK, &stops, nullptr);
  KeepProcessorTimeForASave();
}

void HoldStopSignals() {
  const sigset_t stops = Stops();
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
}

void ReleaseStopSignals() {
  for (const NamedSignal& stop : kStops)
    if (stop.number != SIGHUP || !ignored_at_start.hangup) Act(stop.number, SIG_DFL);
  if (!ignored_at_start.pipe) Act(SIGPIPE, SIG_DFL);
  if (const int signal = StopSignal(); signal != 0) ::raise(signal);
}

void SayStopSignals() { says = true; }

int StopSignal() { return first_signal; }

std::string StopSignalName(int signal) {
  for (const NamedSignal& stop : kStops)
    if (stop.number == signal) return stop.name;
  return "signal " + std::to_string(signal);
}

}  // namespace espalier
