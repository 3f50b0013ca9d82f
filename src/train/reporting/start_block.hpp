// What a run prints before its first step: what it is, on what it runs, and how it ends.
#pragma once

#include <string>
#include <vector>

#include "train/run.hpp"

namespace espalier {

/// One line each, "model      llama, 801k parameters, ...", on rank 0; none on others. `step` is the last one that is
/// done. Collective.
std::vector<std::string> StartBlock(const Run& run, int64_t step);

}  // namespace espalier
