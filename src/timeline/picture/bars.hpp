// The bars that fit into a row of a picture: activities shorter than a fraction of a pixel are merged.
#pragma once

#include <vector>

#include "timeline/picture/jobs.hpp"
#include "timeline/sweep.hpp"

namespace espalier {

/// One track with the data of all its rows.
struct PictureTrack {
  const Track* track = nullptr;
  PictureJobs jobs;
  std::vector<Interval> intervals;  ///< intervals of the whole step, in time order
};
PictureTrack PrepareTrack(const Track& track, double step_us);

/// The part of a step that a panel shows, and its resolution.
struct Window {
  double begin_us = 0, end_us = 0;
  double us_per_pixel = 1;
};

/// The breakdown of a part of the step.
Breakdown BreakDown(const PictureTrack& track, const Window& window);

/// A bar of the compute row. In a gap the compute lane waits, at least a fraction of the time for communication.
struct Bar {
  double begin_us = 0, end_us = 0;
  int job = -1;            ///< -1: a gap
  double exposed_us = 0;   ///< exposed part of its time
  ByJobKind<double> us{};  ///< time of its kernels
  bool merged = false;     ///< several jobs, too short to be shown one by one

  double Length() const { return end_us - begin_us; }
  /// The kind with the most time.
  JobKind Kind() const;
};

/// The bars of the compute row, in time order; idle time is left out.
std::vector<Bar> BarsOf(const PictureTrack& track, const Window& window);

/// A part of an axis' row: the shares of its time in which the axis transfers, exposed or hidden.
struct TransferCell {
  double begin_us = 0, end_us = 0;
  double exposed = 0, hidden = 0;  ///< 0 .. 1, in steps of 1/4
};

/// The row of an axis, in time order; neighbours with equal shares are one cell, empty cells are left out.
std::vector<TransferCell> TransfersOf(const PictureTrack& track, CommAxis axis, const Window& window);

}  // namespace espalier
