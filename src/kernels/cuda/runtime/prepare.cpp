#include "prepare.hpp"

#include <algorithm>
#include <map>

#include "espalier/util/error.hpp"
#include "kernels/cuda/gemm/gemm.hpp"

namespace espalier {
namespace {

CudaKernelOptions& Options() {
  static CudaKernelOptions options;
  return options;
}

}  // namespace

void ConfigureCudaKernels(bool deterministic, const std::string& product_plans) {
  Options().deterministic = deterministic;
  Options().gemm_plans = {};
  if (product_plans.empty()) return;
  Options().gemm_plans = ReadGemmPlans(product_plans);
  const cuda::GemmPlatform platform = cuda::GetGemmPlatform();
  CheckMadeFor(Options().gemm_plans, platform.gpu, platform.library, product_plans);
}

const CudaKernelOptions& GetCudaKernelOptions() { return Options(); }

void PrepareCudaKernel(std::string_view op, const KernelCall& call) {
  static const std::map<std::string_view, Kernel> preparations = {{"matmul", cuda::PrepareMatmul},
                                                                  {"attention", cuda::PrepareAttention},
                                                                  {"attention_grad", cuda::PrepareAttentionGrad}};
  if (const auto it = preparations.find(op); it != preparations.end()) it->second(call);
}

namespace cuda {

int64_t UsableBytes(int64_t bytes) { return std::max<int64_t>(0, bytes - kWorkspaceSlack); }

Workspace AlignedWorkspace(void* data, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto skip = static_cast<int64_t>((kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment);
  CHECK(skip <= kWorkspaceSlack || bytes == 0, "a workspace begins {} bytes before a multiple of {}", skip,
        kWorkspaceAlignment);
  return {static_cast<std::byte*>(data) + skip, UsableBytes(bytes)};
}

}  // namespace cuda
}  // namespace espalier
