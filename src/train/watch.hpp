// What a run tells the other ranks of itself while it runs, and who watches that it goes on.
#pragma once

#include <optional>
#include <utility>

#include "espalier/watch/watchdog.hpp"
#include "train/programs.hpp"

namespace espalier {

class Watch {
 public:
  /// Makes the heartbeats of all ranks and begins to watch; does nothing if run.watchdog_s is 0. Collective. All
  /// arguments must outlive it.
  Watch(const Deck& deck, const Programs& programs, World& world, MpiWorld* mpi);
  /// Calls End.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Ends the watch and removes the heartbeat. From then on the process has as long as a save may take to end.
  void End();

  /// Training is at `step`, its beginning or its end; the first one of this start may take its time.
  void InStep(int64_t step);
  /// A step is over.
  void EndStep();

  void Set(Activity activity);
  /// Does `work` as `activity`, and is what it was before after it.
  template <typename Work>
  auto During(Activity activity, Work work) {
    const Activity before = activity_;
    Set(activity);
    auto result = work();
    Set(before);
    return result;
  }

 private:
  std::string folder_;
  double slow_limit_s_ = 0;
  std::optional<HeartbeatFile> file_;
  std::optional<Watchdog> dog_;
  Activity activity_ = Activity::kStart;
  bool first_ = true;
};

}  // namespace espalier
