// Kernels of a deck, measured in its own programs.
#pragma once

#include <string>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/costs/cost_table.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"
#include "train/health/clocks.hpp"

namespace espalier {

/// Rates at the start of a load and at its end.
struct SteadyLoad {
  double seconds = 0;
  int steps = 0;
  double burst_ms = 0;   ///< median of the steps that began in the first twentieth
  double steady_ms = 0;  ///< of those in the last quarter
  /// Meanwhile: means of all ranks.
  ClockMeans burst, steady;
  std::string no_clocks;  ///< why the clocks of this rank are not known; empty: they are
  /// The rate that is left: burst_ms / steady_ms, at most 1.
  double Share() const { return burst_ms < steady_ms ? burst_ms / steady_ms : 1; }
};

/// The results of one deck. Rank 0 has the tables; other ranks have none.
struct DeckMeasurement {
  CostTable table;
  int steps = 0;            ///< timed
  double step_ms = 0;       ///< median of the timed steps
  double spread = 0;        ///< KernelTimes::Spread, the largest of all ranks
  double gap_us = 0;        ///< time between two kernels
  double bytes_per_us = 0;  ///< the best rate of a kernel that moves much and computes little; 0: no such kernel
  double seconds = 0;       ///< total time, including compilation
  SteadyLoad load;          ///< if there was one
};

/// Runs the training program of `deck` for some steps with made-up tokens from its initial weights: two steps to warm
/// up, a load of `steady_s` seconds, then at least five timed steps, up to thirty within three seconds. Reads no data
/// and writes no files. All ranks run at the same time, so that they share memory and cores as in a run. Collective.
DeckMeasurement MeasureDeck(const Deck& deck, World& world, MpiWorld* mpi, Device& device, double steady_s = 0);

}  // namespace espalier
