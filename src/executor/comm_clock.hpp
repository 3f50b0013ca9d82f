// How long a rank communicates and how much of that it hides, by its own clock alone. A rank cannot tell a transfer
// from waiting for its peers: both count. Traces can tell them apart (MeetPeers).
#pragma once

#include <vector>

#include "espalier/timeline/timeline.hpp"

namespace espalier {

class CommClock {
 public:
  /// Starts a step.
  void Reset();

  /// The compute lane waited for `lane`. Called by one thread, in order. Times are in microseconds from one origin.
  void Waited(Lane lane, double begin_us, double end_us);
  /// The head of `lane` was in progress, from the time at which its waits were met. Called by one thread, in order.
  /// Receives are left out: they are posted long before their bytes are sent.
  void Transferred(Lane lane, double begin_us, double end_us);

  /// Call it when both threads have finished the step. Exposed: all waits of the compute lane for the axis. Hidden: the
  /// time of its transfers outside of these waits.
  CommTimes Times() const;

 private:
  struct Interval {
    double begin_us, end_us;
  };
  ByCommAxis<std::vector<Interval>> waits_, transfers_;
};

}  // namespace espalier
