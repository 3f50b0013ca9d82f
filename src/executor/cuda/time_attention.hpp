// Times attention's backward on this GPU.
#pragma once

#include "espalier/executor/cuda_module.hpp"

namespace espalier::cuda {

/// CudaModule::TimeAttentionGrad.
AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes);

}  // namespace espalier::cuda
