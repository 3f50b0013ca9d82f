// Wall-clock time for reports; nothing that is computed depends on it.
#pragma once

#include <chrono>

namespace espalier {

/// Milliseconds from `start` until now.
inline double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// This host's steady clock in microseconds.
inline double SteadyMicroseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The time of day: seconds since 1970.
inline double SecondsSinceEpoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace espalier
