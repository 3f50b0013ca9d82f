// When a run has to stop so that its last checkpoint is committed before the time limit.
#pragma once

#include <deque>
#include <string>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// The time at which an external limit ends the run, in seconds from the start of the process.
struct TimeEnd {
  double at_s = 0;
  double margin_s = 0;  ///< time kept free before the end
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
  /// True if the next step, as slow as the slowest of the last 20, with `beside_s` of other work and a save of 1.5
  /// times `save_s`, would not end before the margin begins.
  bool Reached(double now_s, double beside_s, double save_s) const;

 private:
  TimeEnd end_;
  std::deque<double> recent_s_;
};

/// The earlier of run.time_limit and `slurm_end`, Slurm's own end of the job in seconds since 1970 (SLURM_JOB_END_TIME;
/// empty: none). `epoch_s` is the start of the process in the same unit. A `slurm_end` that is not a number is
/// no limit.
TimeLimit FindTimeLimit(const Deck& deck, const std::string& slurm_end, double epoch_s);

}  // namespace espalier
