// The console of a run. It never delays training.
#pragma once

#include <cstdio>
#include <string>

namespace espalier {

/// Writes lines to a stream whose reader may disappear or stop reading: a paused terminal, or mpirun between Ctrl-C and
/// its TERM. Lines are dropped until there is room again.
class Console {
 public:
  /// `file` must outlive it; null: nothing is printed.
  explicit Console(std::FILE* file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a line, which ends with a newline. Returns why lines are dropped from now on, once each time that this
  /// begins; otherwise an empty text.
  std::string Print(const std::string& line);

 private:
  /// Writes as much of `pending_` as fits; waits at most `wait_ms` for room. False if some of it is left.
  bool WritePending(int wait_ms);
  bool WriteToFile(const std::string& line);
  std::string Lose();

  std::FILE* file_;
  int descriptor_ = -1;  ///< of a terminal or pipe, non-blocking; -1: neither, so `file_` does not block
  std::string pending_;  ///< the rest of a line that is partly written
  int64_t dropped_ = 0;  ///< lines that were dropped
  bool lost_ = false;
};

}  // namespace espalier
