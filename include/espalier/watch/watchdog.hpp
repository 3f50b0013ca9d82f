// Ends a job that hangs and says who is to blame. A thread that sees that nothing has finished on this rank for some
// time reads the heartbeats of all ranks; and it ends this rank when one of its host has died, whatever the launcher
// does about it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "espalier/watch/diagnose.hpp"

namespace espalier {

class Watchdog {
 public:
  struct Options {
    std::string folder;                ///< of the heartbeats
    double limit_s = 0;                ///< > 0
    double slow_limit_s = 0;           ///< >= limit_s; for what may take its time: the start, saves and loads, the end
    std::vector<int> node_ranks;       ///< of this host
    bool other_hosts = false;          ///< there are ranks on them
    std::function<bool()> asked = {};  ///< this process has been asked to end; never, if not set
    std::function<void()> refresh = {};  ///< brings the heartbeat up to date; called at every tick, if set
  };
  /// Ends the job; it must not return.
  using End = std::function<void()>;

  /// Watches the rank whose heartbeat is `mine`; all ranks' files must be there. All arguments must outlive it.
  Watchdog(Options options, HeartbeatFile& mine, const Compilation& compilation, End end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  /// Waits for `tick`; false if the watch is over.
  bool Sleep(Clock::duration tick);
  void Publish();
  void FindNeighbours();
  /// How long a rank may be quiet in this activity.
  Clock::duration LimitOf(Activity activity) const;
  bool Died(const Heartbeat& neighbour) const;
  void LookForTheDead();
  /// True once another rank has said why it ends the job.
  bool Said() const;
  [[noreturn]] void EndAfter(const Heartbeat& dead);
  std::vector<Standing> Look() const;
  /// What has become of a rank between two looks.
  Standing Compare(Standing now, const Standing& before) const;
  /// Says what the network did when the launcher, which has lost a host, asks all ranks to end.
  void LastWords();
  void Judge();
  void EndJob(const std::vector<Standing>& standings, const Diagnosis& diagnosis);
  const Program& ProgramOf(int rank);

  const Options options_;
  HeartbeatFile& mine_;
  const Compilation& compilation_;
  const End end_;
  std::vector<Heartbeat> neighbours_;  ///< the other ranks of this host, as they began
  std::vector<Standing> before_;       ///< half a limit before the next judgement
  std::vector<int> representative_;
  std::map<int, Program> programs_;  ///< by representative
  Clock::duration quiet_{}, judge_at_{};
  bool warned_ = false, told_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace espalier
