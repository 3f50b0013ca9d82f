// run.gemm_plans = "auto": the quickest algorithm of each matmul of a run, measured by the first start on such a GPU
// with such a library. Later ones find it in a file.
#pragma once

#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/gemm_plans.hpp"

namespace espalier {

/// The plans of `demands` that need no more workspace than planned.
GemmPlans PlansFor(const GemmPlans& known, const std::vector<GemmDemand>& demands);

/// Rank 0 reads the file, measures what it lacks of all ranks' demands and adds it. All ranks go by the same plans
/// then. Ranks on other GPUs than rank 0's, or with another library, are a warning: no plans are used. So is a file
/// that cannot be read or written. Collective.
void UseMeasuredGemms(CudaModule& module, const std::vector<GemmDemand>& demands, World& world);

}  // namespace espalier
