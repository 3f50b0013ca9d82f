// The public interface of the cuda kernels, for the executor on GPUs. It is implemented in the CUDA module.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

/// The kernel of an op, or nullptr.
Kernel FindCudaKernel(std::string_view op);

/// Options that hold for all kernels of the process.
struct CudaKernelOptions {
  bool deterministic = true;  ///< same call, same bits
  GemmPlans gemm_plans;       ///< empty: none
};

/// Sets run.deterministic and run.gemm_plans, before the first Prepare. Throws UserError (kData) if the file cannot
/// be read, or was made on another GPU or with another library.
void ConfigureCudaKernels(bool deterministic, const std::string& gemm_plans);
/// Goes by `plans` from the next Prepare on.
void UseGemmPlans(const GemmPlans& plans);
const CudaKernelOptions& GetCudaKernelOptions();

/// Prepares the kernel of `op` for this call, and launches nothing. If cuDNN refuses, or needs more than the planned
/// workspace, a slower kernel takes the call (NoteFallback). Throws UserError (kDoesNotFit) if no algorithm of a GEMM
/// fits into the workspace, UserError (kDeck) if the call exceeds the limits of the kernels.
void PrepareCudaKernel(std::string_view op, const KernelCall& call);

}  // namespace espalier

namespace espalier::cuda {

/// Times the library's best candidates for each GEMM on the current device, in turn, on random operands, and keeps the
/// fastest; its first choice unless another is faster by one percent. All are deterministic. Calls `measured` for each.
GemmPlans MeasureGemms(std::span<const GemmDemand> demands, const std::function<void(const GemmPlan&)>& measured);

}  // namespace espalier::cuda
