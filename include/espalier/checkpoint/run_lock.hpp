// At most one run at a time in a run directory, and at most one supervisor.
#pragma once

#include <optional>
#include <string>

namespace espalier {

/// Who holds a lock, and its file.
struct LockOf {
  const char* who;
  const char* file;
};
inline constexpr LockOf kLockOfRun = {"run", "run.lock"}, kLockOfSupervisor = {"supervisor", "supervise.lock"};

/// Holds a lock file of a directory (flock: the system releases it when the process ends in any way). The file has
/// host, process and start time as text.
class RunLock {
 public:
  RunLock() = default;
  /// Creates the directory if it is missing. Throws UserError (kFault) that names the holder of the lock. If the file
  /// system does not support locks it warns and continues without.
  explicit RunLock(const std::string& dir, LockOf of = kLockOfRun);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  /// Why this run has lost the directory: the file was removed and another run has created a new one; otherwise empty.
  /// A file that was only removed is created again.
  std::string WhyLost();

  /// Host, process and start of the previous holder if it did not exit in an orderly way ("host a, process 12, since
  /// ..."); otherwise empty.
  const std::string& left_by() const { return left_by_; }

  /// The text of a run's lock that somebody holds now; nothing if it is free.
  static std::optional<std::string> HeldBy(const std::string& dir);
  /// Takes the lock away from a run whose host no longer answers: should it come back, it finds that it has lost the
  /// directory (WhyLost).
  static void TakeAway(const std::string& dir);

 private:
  /// False if another run holds it.
  bool Take();

  std::string dir_;
  LockOf of_ = kLockOfRun;
  int file_ = -1;
  std::string left_by_;
};

}  // namespace espalier
