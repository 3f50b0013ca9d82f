// How far a predicted step may be from a real one: a range that is printed beside every predicted time.
//
// Steps that were published for H100s take 10 to 17 % longer than the formulas of a file with data-sheet rates say, for
// dense models on 8 to 2,304 GPUs (doc/simulate.md, "Range"). Where a stack's efficiency was fitted, or kernels were
// measured, steps are met within about 5 %.
#pragma once

#include <string>

#include "espalier/costs/cluster.hpp"

namespace espalier {

/// A step usually takes from 1 + least to 1 + most of its predicted time.
struct Uncertainty {
  double least = 0, most = 0;
  std::string reason = {};  ///< "uncalibrated: 10 to 20 % more is usual"
};

/// `formula_share`: share of the time of all instructions that comes from formulas, 0 to 1.
Uncertainty UncertaintyOf(const Cluster& cluster, double formula_share);
/// For runs with run.device = "sleep", whose instructions take the times of the file.
Uncertainty UncertaintyOfWaiting();

/// The range of a predicted time, in the same unit.
struct TimeRange {
  double least = 0, most = 0;
};
inline TimeRange RangeOf(double time, const Uncertainty& u) { return {time * (1 + u.least), time * (1 + u.most)}; }

}  // namespace espalier
