// This rank's heartbeat, which the other ranks read, and the watchdog that detects a hang.
#pragma once

#include <optional>
#include <utility>

#include "espalier/watch/watchdog.hpp"
#include "train/programs.hpp"

namespace espalier {

class Watch {
 public:
  /// Creates the heartbeat and starts the watchdog; does nothing if run.watchdog_s is 0. All arguments must outlive it.
  /// Collective.
  Watch(const Deck& deck, const Programs& programs, World& world, MpiWorld* mpi);
  /// Calls End. While an exception unwinds, writes the flight record first.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Ends the watch and removes the heartbeat. From then on the process may take as long as a save to end.
  void End();

  /// Training begins or awaits `step`. The first step of a start keeps the activity kStart, whose limit is longer.
  void InStep(int64_t step);
  /// A step was awaited.
  void EndStep();

  void Set(Activity activity);
  /// Runs `work` while the heartbeat shows `activity`, then restores the previous activity.
  template <typename Work>
  auto During(Activity activity, Work work) {
    const Activity before = activity_;
    Set(activity);
    auto result = work();
    Set(before);
    return result;
  }

 private:
  /// The step that the heartbeat shows, or 1 before the first. Any thread may call this.
  int64_t StepSeen() const;

  const Programs& programs_;
  MpiWorld* mpi_;
  const int exceptions_at_start_;
  std::string folder_;
  double slow_limit_s_ = 0;
  std::optional<HeartbeatFile> file_;
  std::optional<FlightRecorder> recorder_;
  std::optional<Watchdog> dog_;
  Activity activity_ = Activity::kStart;
  bool first_ = true;
};

}  // namespace espalier
