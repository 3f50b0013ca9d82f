// The time of a step by formula, from the times of the parts of a model: it ranks candidates before the best are
// simulated. All candidates of a group share the profile of their layers, and those with one schedule its replay.
#pragma once

#include <cstdint>
#include <vector>

#include "tune/memory_bound.hpp"
#include "tune/pipeline_replay.hpp"
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
  double norm_us = 0;   ///< time to exchange scalars between update and gradients
  double slowdown = 0;  ///< of kernels beside messages of shards
};
DataParallelTimes SyncTimes(const LayerProfile& profile, const Layout& layout, const Costs& costs);

/// Between two stages of a pipeline.
struct StageLink {
  double message_us = 0;  ///< time of a message of the residual stream
  double slowdown = 0;    ///< of kernels beside it
};
StageLink LinkOf(const LayerProfile& profile, const Layout& layout, const Costs& costs);

struct StepQuestion {
  const LayerProfile& profile;
  const Layout& layout;
  const PipelineReplay& pipeline;
  int64_t microbatches = 1;
  const std::vector<ChunkParts>& chunks;
  const DataParallelTimes& sync;
  StageLink link;
  bool hides_reductions = true;  ///< overlap.gradients
};

/// The time of a step: a replay of the schedule between the first gather of weights and the last reduction of
/// gradients, then the update.
double FormulaUs(const StepQuestion& question);

/// At most FormulaUs, in less time: the busiest stage without idle time, and the update.
double LeastUs(const StepQuestion& question);

}  // namespace espalier
