// Declarations that the fuzz targets share. A target is one function over bytes, LLVMFuzzerTestOneInput: libFuzzer
// drives it (meson option `fuzz`, clang), or runner.cpp, which replays a corpus and mutates it from a seed (any
// compiler).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "espalier/util/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace espalier::fuzz {

/// Bytes that operator new has allocated and that are not freed, and their maximum since the last Reset.
struct Heap {
  static void Reset();
  static int64_t Peak();  ///< peak above the bytes that were allocated at the last Reset
};

/// Counts that the runner reports besides its own.
struct Tally {
  int64_t accepted = 0;  ///< inputs that were found good
  int64_t peak = 0;      ///< most bytes of one input
};
inline Tally tally;

/// Ends the process so that the input is kept.
inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

/// True if `work` refuses its input as a user's error with `status`; any other exception ends the process.
template <typename Work>
bool IsRefused(ExitStatus status, const Work& work) {
  try {
    work();
    return false;
  } catch (const UserError& error) {
    Require(error.status() == status && !error.messages().empty(),
            std::string("refused in the wrong way: ") + error.what());
    return true;
  }
}

/// Calls code that reads the input, with a limit of `most` bytes of heap.
template <typename Work>
auto Within(int64_t most, const Work& work) {
  struct Guard {
    int64_t most;
    ~Guard() {
      const int64_t peak = Heap::Peak();
      if (peak > tally.peak) tally.peak = peak;
      Require(peak <= most, "took " + std::to_string(peak) + " bytes of heap; allowed: " + std::to_string(most));
    }
  };
  Heap::Reset();
  const Guard guard{most};
  return work();
}

}  // namespace espalier::fuzz
