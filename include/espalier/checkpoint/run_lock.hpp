// One run at a time in a run's directory.
#pragma once

#include <string>

namespace espalier {

/// Holds the lock file `run.lock` of a directory (flock: the system lets go of it when the process ends, however it
/// ends), with host, process, and start time inside for people.
class RunLock {
 public:
  RunLock() = default;
  /// Makes the directory if it is missing. Throws UserError (kFault) naming who holds the lock. Where the file system
  /// knows no locks it warns and goes on without.
  explicit RunLock(const std::string& dir);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  /// What the holder before left if it did not end by itself ("host a, process 12, since ..."); else empty.
  /// Why the directory is no longer this run's: the file was removed and another run has made a new one; empty if it
  /// is. A file that was only removed is made again.
  std::string WhyLost();

  const std::string& left_by() const { return left_by_; }

 private:
  /// False if another run holds it.
  bool Take();

  std::string dir_;
  int file_ = -1;
  std::string left_by_;
};

}  // namespace espalier
