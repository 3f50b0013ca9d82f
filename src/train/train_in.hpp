// A run within a job that has started MPI already.
#pragma once

#include "espalier/comm/mpi_world.hpp"
#include "espalier/train/trainer.hpp"
#include "train/parts.hpp"

namespace espalier {

/// Trains on all ranks of `world`, in the steps of the trainer. `parts` owns what must stay alive until the end of the
/// job is decided. Collective; throws as Train.
ExitStatus TrainIn(const RunOptions& options, World& world, MpiWorld* mpi, Parts& parts);

}  // namespace espalier
