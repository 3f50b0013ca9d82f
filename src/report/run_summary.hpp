// The line at the end of a run that says what this start has done.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/report/report.hpp"

namespace espalier {

class RunSummary {
 public:
  void Add(const StepRecord& record);
  /// "steps 1 to 20: 61.4k tokens in 12s, 5.01k tokens/s, mfu 41.2 %; loss 3.22319, lowest 3.20110 (step 18)". Empty
  /// before the first step. The rate is that of all steps but the first, if there are others. A run that sleeps has no
  /// losses, and without a peak there is no mfu.
  std::string Text(const ReportOptions& options) const;

 private:
  struct Sums {
    double tokens = 0, ms = 0;
    void Add(const StepRecord& record);
  };
  std::string LossText() const;

  int64_t first_step_ = 0, last_step_ = 0, lowest_step_ = 0;  ///< 0: none; of the finite losses the lowest
  float loss_ = 0, lowest_ = 0;
  Sums first_, others_;
};

}  // namespace espalier
