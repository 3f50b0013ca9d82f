// The console of a run. It never delays training.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "espalier/report/terminal.hpp"

namespace espalier {

/// Writes lines to a stream whose reader may disappear or stop reading: a paused terminal, or mpirun between Ctrl-C and
/// its TERM. Lines are dropped until there is room again. On a terminal a last line can be shown that the next line
/// replaces. Not for several threads at once.
class Console {
 public:
  /// `file` must outlive it; null: nothing is printed.
  explicit Console(std::FILE* file);
  /// Erases the shown line.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a line, which ends with a newline. When lines begin to be dropped, returns the reason, once each time;
  /// otherwise an empty text.
  std::string Print(const std::string& line);

  /// Shows a line, given without its newline, in place of the previous one; cut to the width of the terminal. An empty
  /// one only erases.
  /// Does nothing without a terminal, or if its reader is slow. Only for ASCII.
  void Show(const std::string& line);

 private:
  /// Overwrites the shown line with blanks; empty if none is shown.
  std::string Erasure();
  /// Writes as much of `pending_` as fits; waits at most `wait_ms` for room. False if some of it is left.
  bool WritePending(int wait_ms);
  bool WriteToFile(const std::string& line);
  std::string Lose();

  std::FILE* file_;
  int descriptor_ = -1;  ///< descriptor of a terminal or pipe, non-blocking; -1: neither, so `file_` does not block
  std::optional<Terminal> terminal_;
  size_t shown_ = 0;     ///< length of the shown line
  std::string pending_;  ///< the rest of a line that is partly written
  int64_t dropped_ = 0;  ///< lines that were dropped
  bool lost_ = false;
};

}  // namespace espalier
