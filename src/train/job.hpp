// A job of many ranks: MPI, the parts that live until its end is decided, and its end on errors.
#pragma once

#include <functional>

#include "espalier/comm/mpi_world.hpp"
#include "train/parts.hpp"

namespace espalier {

/// The work that all ranks do together. `mpi` is null for a world of one process. `parts` owns objects that must
/// outlive an error.
using Journey = std::function<ExitStatus(World& world, MpiWorld* mpi, Parts& parts)>;

/// Runs `journey` alone, or with all ranks if a launcher started this process; then `when_started` is called first.
/// Errors that all ranks agree on are thrown once MPI has ended; any other error ends the job.
ExitStatus RunJob(const Journey& journey, const std::function<void()>& when_started = {});

}  // namespace espalier
