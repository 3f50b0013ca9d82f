// The weights that a run without a checkpoint starts from.
#pragma once

#include "espalier/executor/executor.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {

/// Initializes this rank's weights by the model's rules (doc/numerics.md); moments start at zero.
void InitializeWeights(const Compilation& compilation, const Executor& executor);

}  // namespace espalier
