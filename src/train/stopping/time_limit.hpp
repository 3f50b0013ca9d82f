// When a run has to stop so that its last checkpoint is committed before its time is over.
#pragma once

#include <deque>
#include <string>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// The time at which somebody else ends the run. Seconds count from the beginning of the process.
struct TimeEnd {
  double at_s = 0;
  double margin_s = 0;  ///< kept free before it
  std::string what;     ///< "run.time_limit = 01:00:00"
};

class TimeLimit {
 public:
  /// No limit.
  TimeLimit() = default;
  explicit TimeLimit(TimeEnd end) : end_(std::move(end)) {}

  bool Set() const { return !end_.what.empty(); }
  const TimeEnd& end() const { return end_; }
  void StepTook(double seconds);
  /// A step as slow as the slowest of the last 20, what comes beside it, and a save 1.5 times as long as the slowest so
  /// far would not end before the margin begins.
  bool Reached(double now_s, double beside_s, double save_s) const;

 private:
  TimeEnd end_;
  std::deque<double> recent_s_;
};

/// The earlier of run.time_limit and `slurm_end`, Slurm's own end of the job in seconds since 1970 (SLURM_JOB_END_TIME;
/// empty: none). `epoch_s` is the beginning of the process in the same count. A `slurm_end` that is no such number is
/// no limit.
TimeLimit FindTimeLimit(const Deck& deck, const std::string& slurm_end, double epoch_s);

}  // namespace espalier
