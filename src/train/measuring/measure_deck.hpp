// Kernels of a deck, measured in its own programs.
#pragma once

#include <string>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/costs/cost_table.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// The results of one deck. Rank 0 has the tables; other ranks have none.
struct DeckMeasurement {
  CostTable table;
  int steps = 0;            ///< timed
  double step_ms = 0;       ///< median of the timed steps
  double spread = 0;        ///< KernelTimes::Spread, the largest of all ranks
  double gap_us = 0;        ///< time between two kernels
  double bytes_per_us = 0;  ///< the best rate of a kernel that moves much and computes little; 0: no such kernel
  double seconds = 0;       ///< total time, including compilation
};

/// Runs the training program of `deck` for some steps with made-up tokens from its initial weights: two steps to warm
/// up, then at least five timed steps, up to thirty within three seconds. Reads no data and writes no files. All ranks
/// run at the same time, so that they share memory and cores as in a run. Collective.
DeckMeasurement MeasureDeck(const Deck& deck, World& world, MpiWorld* mpi, Device& device);

}  // namespace espalier
