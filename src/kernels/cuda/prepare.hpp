// What is done before the first step, so that no step pays for it: libraries choose algorithms and compile kernels,
// which may neither be captured nor take time while ranks wait for one another.
#pragma once

#include <string>
#include <string_view>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/kernels/product_plans.hpp"

namespace espalier {

/// What a run decides for all kernels of the process.
struct CudaKernelOptions {
  bool deterministic = true;   ///< same call, same bits
  ProductPlans product_plans;  ///< empty: none
};

/// run.deterministic and run.product_plans, before the first Prepare. Throws UserError (kData) if the file cannot be
/// read, or was made on another GPU or with another library.
void ConfigureCudaKernels(bool deterministic, const std::string& product_plans);
const CudaKernelOptions& GetCudaKernelOptions();

/// Makes ready what the kernel of `op` needs for this call, and launches nothing. Throws UserError (kDoesNotFit) if a
/// library wants more than the planned workspace, UserError (kDeck) if the call is beyond what the kernels take.
void PrepareCudaKernel(std::string_view op, const KernelCall& call);

}  // namespace espalier

namespace espalier::cuda {

void PrepareMatmul(const KernelCall& call);
void PrepareAttention(const KernelCall& call);
void PrepareAttentionGrad(const KernelCall& call);

/// Every buffer of a call begins on a whole number of so many bytes.
inline constexpr int64_t kBufferAlignment = 64;

/// Libraries want more of a workspace. Room for the difference is part of what is planned.
inline constexpr int64_t kWorkspaceAlignment = 256, kWorkspaceSlack = kWorkspaceAlignment - kBufferAlignment;

struct Workspace {
  void* data;
  int64_t bytes;
};
Workspace AlignedWorkspace(void* data, int64_t bytes);

/// Bytes that are surely left of `bytes` once the workspace is aligned.
int64_t UsableBytes(int64_t bytes);

}  // namespace espalier::cuda
