// The time of a step in closed form, from the times of one layer: it ranks candidates before the best are simulated.
// All candidates of a group share the profile of their layers, so that one costs about a microsecond.
#pragma once

#include <cstdint>
#include <vector>

#include "tune/in_flight.hpp"
#include "tune/memory_bound.hpp"
#include "tune/profile.hpp"

namespace espalier {

/// Data-parallel messages and updates of one part, on the rank with coordinate 0.
struct PartSync {
  double gather_us = 0;  ///< time to gather its compute weights once
  double reduce_us = 0;  ///< time to reduce its gradients once
  double update_us = 0;  ///< time of the kernels of P, S and U
};
struct DataParallelTimes {
  ByPart<PartSync> parts;
  double norm_us = 0;  ///< time to exchange scalars between update and gradients
};
DataParallelTimes SyncTimes(const LayerProfile& profile, const Layout& layout, const Costs& costs);

/// Time of a message of the residual stream to the next stage.
double HopUs(const LayerProfile& profile, const Layout& layout, const Costs& costs);

struct StepQuestion {
  const LayerProfile& profile;
  const Layout& layout;
  const std::vector<StageFlights>& flights;  ///< for the chunks of each stage
  const std::vector<int64_t>& layers;        ///< by chunk
  const DataParallelTimes& sync;
  double hop_us = 0;
  int64_t microbatches = 1;
  bool hides_reductions = true;  ///< overlap.gradients
};

/// The time of a step. The idle time of pipelines follows the papers of their schedules (src/schedule), with the mean
/// of unequal stages; messages between stages add to the cycles that limit 1F1B.
double FormulaUs(const StepQuestion& question);

}  // namespace espalier
