// The console of a run: lines for whoever watches. It never holds training up.
#pragma once

#include <cstdio>
#include <string>

namespace espalier {

/// Writes lines to a stream that may lose its reader, or whose reader may stop to read: a terminal that is paused, or
/// mpirun between Ctrl-C and its TERM. Then lines are left out, until there is room again.
class Console {
 public:
  /// `file` must outlive it; null: nothing is printed.
  explicit Console(std::FILE* file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a line, which ends with a newline. Returns why lines are lost from now on, once for each time that this
  /// begins; else an empty text.
  std::string Print(const std::string& line);

 private:
  /// Writes as much of `pending_` as there is room for; waits for room for at most `wait_ms`. False if some is left.
  bool WritePending(int wait_ms);
  bool WriteToFile(const std::string& line);
  std::string Lose();

  std::FILE* file_;
  int descriptor_ = -1;   ///< of a terminal or pipe, without blocking; -1: neither, so that `file_` does not block
  std::string pending_;   ///< the rest of a line that was begun
  int64_t left_out_ = 0;  ///< lines, since there was no room
  bool lost_ = false;
};

}  // namespace espalier
