#include "prepare.hpp"

#include <map>

#include "kernels/cuda/gemm/gemm.hpp"

namespace espalier {
namespace {

CudaKernelOptions& Options() {
  static CudaKernelOptions options;
  return options;
}

}  // namespace

void ConfigureCudaKernels(bool deterministic, const std::string& gemm_plans) {
  Options().deterministic = deterministic;
  Options().gemm_plans = {};
  if (gemm_plans.empty()) return;
  Options().gemm_plans = GemmPlans::Read(gemm_plans);
  Options().gemm_plans.CheckMadeOn(cuda::GetGemmPlatform(), gemm_plans);
}

void UseGemmPlans(const GemmPlans& plans) { Options().gemm_plans = plans; }

const CudaKernelOptions& GetCudaKernelOptions() { return Options(); }

void PrepareCudaKernel(std::string_view op, const KernelCall& call) {
  static const std::map<std::string_view, Kernel> preparations = {{"matmul", cuda::PrepareMatmul},
                                                                  {"attention", cuda::PrepareAttention},
                                                                  {"attention_grad", cuda::PrepareAttentionGrad}};
  if (const auto it = preparations.find(op); it != preparations.end()) it->second(call);
}

}  // namespace espalier
