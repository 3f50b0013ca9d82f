// Trains as specified by a deck, on all ranks of the job.
#pragma once

#include <chrono>
#include <string>

#include "espalier/deck/parse.hpp"
#include "espalier/report/verbosity.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

struct RunOptions {
  DeckArguments arguments;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();  ///< start of the process
  Verbosity verbosity = Verbosity::kNormal;
  std::string restart;  ///< "latest", a checkpoint's folder, or empty: as in checkpoint.restart
};

/// Trains until run.steps, or until a signal or the time limit stops the run (kStopped). Starts and ends MPI. Throws
/// UserError if the run ends in any other way; AgreedError if all ranks know the error.
ExitStatus Train(const RunOptions& options);

}  // namespace espalier
