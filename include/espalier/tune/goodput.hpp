// How much of a job's time makes progress if nodes fail now and then, and how often to save. Failures come at random
// with a mean time M between them (Poisson); each costs a restart of R and the work since the last save that counts.
//
//   Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974), 530
//   Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), 303
#pragma once

namespace espalier {

/// Young's best time between two saves, each of which takes `save_s` of the job's time: sqrt(2 save M).
double YoungIntervalS(double save_s, double mtbf_s);

/// Daly's, which holds for saves of up to 2 M: of work between two saves, in s.
double DalyIntervalS(double save_s, double mtbf_s);

/// A job that saves after every `interval_s` of work.
struct GoodputQuestion {
  double interval_s = 0;
  double save_s = 0;     ///< that a save keeps training waiting
  double restart_s = 0;  ///< from a failure until work goes on, and the work lost besides that since the last save
  double mtbf_s = 0;     ///< of the whole job
};

/// The share of time that makes progress which lasts, 0 to 1. Daly's complete model (2006, section 3): an interval is
/// repeated until it and its save pass without a failure, and so is each restart.
double Goodput(const GoodputQuestion& question);

}  // namespace espalier
