// The GPU for which cuDNN plans attention: the current device, or, in tests/emulation/cudnn_plans_test.cpp, one that is
// only described.
#pragma once

#include <string>

namespace espalier::cuda {

struct PlannedGpu {
  int capability = 0;       ///< compute capability: 90 is 9.0
  std::string description;  ///< cuDNN's JSON of the properties of a GPU that is not here; empty: the current device
};
PlannedGpu GetPlannedGpu();

}  // namespace espalier::cuda
