// The line at the end of a run about the share of hidden communication.
#pragma once

#include <string>

#include "espalier/report/report.hpp"

namespace espalier {

class CommunicationSummary {
 public:
  /// A step with unknown communication adds nothing.
  void Add(const StepRecord& record);

  /// "tp 3.20 ms a step, 45 % hidden; dp 12.1 ms, 98 % hidden; exposed 4.1 % of the step (rank 0, mean of 9 steps)".
  /// Empty if communication is unknown, or nothing was sent.
  std::string Text() const;

 private:
  struct Sums {
    CommTimes comm;
    double step_ms = 0;
    int64_t steps = 0;
    void Add(const StepRecord& record);
  };
  Sums first_, others_;  ///< the first step of a start is slower: it counts only if it is the only one
};

}  // namespace espalier
