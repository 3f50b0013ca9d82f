// The lanes of one rank alone: every message begins when the rank is ready for it. For the time of a layer.
#pragma once

#include <vector>

#include "espalier/costs/costs.hpp"

namespace espalier {

/// A kernel of the compute lane.
struct Step {
  int instruction = -1;
  double kernel_us = 0;     ///< beside the transfers of its rank
  double waited_us = 0;     ///< wait since the previous kernel
  Port port = Port::kNone;  ///< of the transfer for which it waited, if any
};

/// By which fraction kernels are slower while a transfer is in progress there.
double SlowdownAt(Port port, const Cluster& cluster);

/// The compute lane in program order. Instructions of role P take no time: they run once per step. A transfer of a
/// microbatch costs the kernels beside it its time times the slowdown.
std::vector<Step> Walk(const Program& program, const std::vector<InstructionCost>& cost, const Cluster& cluster);

}  // namespace espalier
