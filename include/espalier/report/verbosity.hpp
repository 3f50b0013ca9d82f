// How much a run prints on its console.
#pragma once

#include <cstdint>

namespace espalier {

/// -q, neither, -v.
enum class Verbosity : uint8_t { kQuiet, kNormal, kVerbose };

/// The lowest verbosity at which a line is shown. Warnings and errors are always shown.
enum class Worth : uint8_t {
  kResult,   ///< results of a run
  kNormal,   ///< description of the run and its actions
  kRoutine,  ///< expected events: checks that passed, times of the start, libraries
};

inline bool Shows(Verbosity verbosity, Worth worth) { return static_cast<int>(worth) <= static_cast<int>(verbosity); }

}  // namespace espalier
