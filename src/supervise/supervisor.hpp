// The loop of a supervisor: start, watch, find the cause of the end, choose hosts and layout, start again.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "espalier/checkpoint/run_lock.hpp"
#include "espalier/supervise/supervise.hpp"
#include "supervise/cause.hpp"
#include "supervise/child_process.hpp"
#include "supervise/fallback.hpp"
#include "supervise/host_pool.hpp"
#include "supervise/hosts.hpp"
#include "supervise/launcher.hpp"
#include "supervise/ledger.hpp"
#include "supervise/metrics_tail.hpp"

namespace espalier {

/// Everything that is fixed from the start to the end.
struct SuperviseSetup {
  SuperviseOptions options;
  Deck deck;
  std::string run_dir;  ///< absolute
  HostList hosts;
  std::string this_host;
  Launcher launcher;
  std::optional<Costs> costs;        ///< of --cluster
  std::vector<std::string> program;  ///< that the ranks run, without the command
};

class Supervisor {
 public:
  explicit Supervisor(SuperviseSetup setup);

  ExitStatus Run();

 private:
  /// Hosts and layout of a start.
  struct Placement {
    std::vector<std::string> hosts;  ///< in the order of ranks
    RunLayout layout;
    bool full = true;  ///< the deck's own layout
  };
  /// A start that has ended.
  struct Ended {
    Cause cause;
    int status = 0;
    bool launcher_killed = false;  ///< by a signal
    std::optional<int64_t> last_step;
    double last_time = 0;  ///< when that step was reported; for a start without one, when it began
    int64_t saved = 0;     ///< step of the newest checkpoint
    std::vector<std::string> hosts;
    bool full = true;
  };

  // Before a start.
  void EndOrphan();
  std::optional<Placement> Choose();
  /// Waits until no run holds the directory; takes it from one on a host that does not answer. Throws UserError
  /// (kFault) if another one holds it.
  void AwaitDirectory();

  // A start.
  Ended Start(const Placement& placement);
  std::vector<std::string> Command(const Placement& placement) const;
  void Announce(const Placement& placement);
  /// Polls until the launcher has ended.
  int Watch(ChildProcess& launcher, MetricsTail& metrics, const Placement& placement);
  void ForwardSignal(const ChildProcess& launcher);
  /// Open MPI's launcher may stay when all its ranks have died.
  void EndIfAlone(ChildProcess& launcher);
  /// Ends a start that hangs before the run has its watchdogs, for example while MPI comes up.
  void EndIfNeverBegins(ChildProcess& launcher);
  /// Ends a run whose state one host corrupts, if another host can take its place.
  void AnswerCorruption(const ChildProcess& launcher, const MetricsTail& metrics, const Placement& placement);
  /// Once the steps that a failure cost are made again.
  void RecordRecovery(const MetricsTail& metrics);

  // After it.
  /// Finds which hosts may be used, and counts what the failure cost.
  void Judge(const Ended& ended);
  void FindAnswers(const Ended& ended);
  /// Asks the spare hosts while the run goes on, so that a failure need not wait for their answer.
  void AskSpares(const Placement& placement);
  /// Takes the answers to AskSpares; false if they are not there yet.
  bool TakeAnswersOfSpares(const std::vector<std::string>& hosts);
  bool HasProgressed(const Ended& ended);
  ExitStatus End(ExitStatus status, const std::string& why);
  void CleanAll();
  int64_t SavedStep() const;
  std::string TimeLeft() const;
  OnHostOptions OnHost() const;
  std::string MemoryFolder() const;

  const SuperviseSetup setup_;
  const size_t full_hosts_;  ///< that train, without spares
  RunLock lock_;             ///< against a second supervisor
  Ledger ledger_;
  LedgerPast past_;
  HostPool pool_;
  Fallbacks fallbacks_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const double began_at_;            ///< seconds since 1970
  std::vector<std::string> before_;  ///< hosts of the last start, in the order of ranks
  std::optional<Ended> lost_;        ///< the last failure, until its steps are made again
  int starts_ = 0, failures_ = 0, idle_ = 0;
  int64_t furthest_ = -1;  ///< step, reported or saved
  int64_t steps_lost_ = 0;
  double seconds_lost_ = 0;
  std::vector<std::string> spares_;                            ///< that are asked
  std::optional<std::future<std::set<std::string>>> answers_;  ///< of them
  bool spares_unasked_ = true;                                 ///< in this start
  bool asked_ = false;                                         ///< a signal asks to stop
  bool replacing_ = false;  ///< this supervisor asked the run to stop, to replace a host
  bool begun_ = false;      ///< rank 0 of this start has its watchdog
  bool never_begins_ = false;
  std::chrono::steady_clock::time_point started_, alone_since_, looked_at_;
};

}  // namespace espalier
