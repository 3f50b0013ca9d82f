// Ends a job that hangs and names the rank at fault. When nothing has finished on this rank for some time, the
// watchdog's thread reads the heartbeats of all ranks. It also ends this rank when another rank on its node has died,
// independently of the launcher.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "espalier/watch/diagnose.hpp"
#include "espalier/watch/flight_recorder.hpp"

namespace espalier {

/// The limit for slow activities, in seconds, if run.watchdog_slow_s gives none; a state needs more.
constexpr double DefaultSlowLimit(double limit_s) {
  constexpr double kMin = 600;
  return std::max(kMin, 10 * limit_s);
}

class Watchdog {
 public:
  struct Options {
    HeartbeatTable heartbeats;
    double limit_s = 0;                  ///< > 0
    double slow_limit_s = 0;             ///< >= limit_s; limit for slow activities: the start, saves and loads, the end
    std::function<bool()> asked = {};    ///< this process was asked to end; not set: never
    std::function<void()> refresh = {};  ///< updates the heartbeat; called at every tick, if set
    FlightRecorder* recorder = nullptr;  ///< keeps readings, and is written before this object ends the job
  };
  /// Finds the compilation from which the programs of a training step are made. It outlives the watchdog.
  using CompilationFinder = std::function<const Compilation&(int64_t step)>;
  /// Ends the job; it must not return.
  using End = std::function<void()>;

  /// Watches the rank whose heartbeat is `mine`; all ranks must have written theirs. All arguments must outlive it.
  Watchdog(Options options, HeartbeatFile& mine, CompilationFinder compilation_of, End end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  /// Waits for `tick`; false if this object is being destroyed.
  bool Sleep(Clock::duration tick);
  void Publish();
  /// Writes the flight record, if there is a recorder; the last line of a report, or "".
  std::string Record(const std::string& reason) const;
  void FindNeighbours();
  /// How long a rank may make no progress in this activity.
  Clock::duration LimitOf(Activity activity) const;
  bool Died(const Heartbeat& neighbour) const;
  void EndIfNeighbourDied();
  /// True once another rank has reported why it ends the job.
  bool AlreadyReported() const;
  [[noreturn]] void EndAfter(const Heartbeat& dead);
  std::vector<RankStatus> ReadStatuses() const;
  /// The status of a rank, given two readings that are half a limit apart.
  RankStatus Compare(RankStatus now, const RankStatus& before) const;
  /// Reports a network failure when the launcher, which has lost a host, asks all ranks to end.
  void ReportBeforeExit();
  void CheckForHang();
  void EndJob(const std::vector<RankStatus>& statuses, const Diagnosis& diagnosis);
  /// Waits, for two seconds at most, until the ranks of this node that wait, too, have written their records: the
  /// launcher soon kills them all.
  void AwaitRecords(const std::vector<RankStatus>& statuses);
  bool OtherHosts() const { return std::ssize(node_) < options_.heartbeats.Ranks(); }
  const Program& ProgramOf(int rank, int64_t step);

  const Options options_;
  HeartbeatFile& mine_;
  const CompilationFinder compilation_of_;
  const End end_;
  const std::vector<int> node_;        ///< ranks of this host
  std::vector<Heartbeat> neighbours_;  ///< the others of them, as read at the start
  std::vector<RankStatus> before_;     ///< read half a limit before the next check
  std::vector<int> representative_;
  std::map<std::pair<const Compilation*, int>, Program> programs_;  ///< by compilation and representative
  Clock::duration quiet_{}, check_at_{};
  bool warned_ = false, reported_before_exit_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace espalier
