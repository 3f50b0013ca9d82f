// Checks in about a minute that this installation works on all ranks of the job, for users and sites.
#pragma once

#include <string>

#include "espalier/util/error.hpp"

namespace espalier {

struct SelfTestOptions {
  std::string folder = ".";  ///< a folder that all ranks share; a temporary folder is made in it
  bool keep = false;         ///< do not remove the temporary folder
};

/// Compares the CPU's kernels with the reference on every rank, times messages between all ranks, trains on all ranks
/// and on one, restarts in another layout, and verifies the checkpoints. Rank 0 prints a line for each, with verdict
/// and figures, and a remedy after each failure. Returns kDone or kFault. Starts and ends MPI. The temporary folder is
/// removed unless something failed. Throws UserError if it cannot be made (kDeck).
ExitStatus SelfTest(const SelfTestOptions& options);

}  // namespace espalier
