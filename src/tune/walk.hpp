// The lanes of one rank alone: every message begins when the rank is ready for it. For the time of a layer.
#pragma once

#include <optional>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// A kernel of the compute lane.
struct Step {
  int instruction = -1;
  double kernel_us = 0;
  double waited_us = 0;          ///< wait since the previous kernel
  std::optional<CommAxis> axis;  ///< axis for which it waited, if any
};

/// The compute lane in program order. Instructions of role P take no time: they run once per step.
std::vector<Step> Walk(const Program& program, const std::vector<InstructionCost>& cost);

}  // namespace espalier
