// At most one run at a time in a run directory.
#pragma once

#include <string>

namespace espalier {

/// Holds the lock file `run.lock` of a directory (flock: the system releases it when the process ends in any way). The
/// file has host, process and start time as text.
class RunLock {
 public:
  RunLock() = default;
  /// Creates the directory if it is missing. Throws UserError (kFault) that names the holder of the lock. If the file
  /// system does not support locks it warns and continues without.
  explicit RunLock(const std::string& dir);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  /// Why this run has lost the directory: the file was removed and another run has created a new one; otherwise empty.
  /// A file that was only removed is created again.
  std::string WhyLost();

  /// Host, process and start of the previous holder if it did not exit in an orderly way ("host a, process 12, since
  /// ..."); otherwise empty.
  const std::string& left_by() const { return left_by_; }

 private:
  /// False if another run holds it.
  bool Take();

  std::string dir_;
  int file_ = -1;
  std::string left_by_;
};

}  // namespace espalier
