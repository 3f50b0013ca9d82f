// A command in the background, in a session of its own.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace espalier {

/// Where the command's two outputs go.
enum class Output : uint8_t {
  kErrorsSeen,  ///< standard output is inherited; standard error is passed on by Poll, which remembers its end
  kCaptured,    ///< both are remembered, and not shown
};

/// Starts the command in a session of its own, with TERM blocked: schedulers send TERM to every process of a job, and
/// mpirun would end the ranks a second later. If this process dies, the command gets USR1, which launchers forward and
/// a run obeys. Its standard error is a file in memory, not a pipe: it may write on when nobody reads any more.
class ChildProcess {
 public:
  /// Throws UserError (kFault) if it cannot be started; a command that is not found ends with 127.
  ChildProcess(const std::vector<std::string>& words, Output output,
               const std::vector<std::pair<std::string, std::string>>& environment = {});
  /// Kills the command if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const { return id_; }
  /// Passes on what was printed since; the exit status once the command has ended (128 and more: a signal).
  std::optional<int> Poll();
  /// Whether a signal has ended the command. A launcher whose rank was killed may have the same status by itself.
  bool was_killed() const { return was_killed_; }
  void Signal(int number) const;
  /// Whether it has had children, and all of them have ended: a launcher that has lost all its ranks, but stays.
  bool IsAlone();
  /// The last 256 KiB that were printed.
  const std::string& text() const { return text_; }

 private:
  void Read();

  Output output_;
  int printed_ = -1;  ///< the file in memory
  int64_t read_ = 0;  ///< bytes of it that were passed on
  pid_t id_ = -1;
  std::optional<int> status_;
  bool was_killed_ = false;
  bool had_children_ = false;
  std::string text_;
};

/// Field 22 of /proc/PID/stat, which tells apart two processes that had one id after another; 0: no such process.
int64_t StartTicks(pid_t process);

}  // namespace espalier
