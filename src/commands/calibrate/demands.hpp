// The programs of a deck on GPUs, whose kernels `calibrate` times.
#pragma once

#include <string>
#include <vector>

#include "espalier/executor/demands.hpp"
#include "espalier/program/plan.hpp"

namespace espalier {

/// A deck, with `run.device` set to GPUs, on `ranks` ranks; 0: the fewest that its degrees allow. Throws UserError.
WorldPlan PlanForGpus(const std::string& deck, std::vector<std::string> overrides, int ranks);

}  // namespace espalier
