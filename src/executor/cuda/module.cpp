// The entry of the module.
#include <fmt/core.h>

#include "cuda_device.hpp"
#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/util/error.hpp"
#include "time_attention.hpp"
#include "versions.hpp"

namespace espalier::cuda {
namespace {

/// Errors of the driver are user errors.
void Require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) throw UserError(ExitStatus::kFault, fmt::format("cuda: {}: this machine has no driver", what));
  throw UserError(
      ExitStatus::kFault,
      fmt::format("cuda: {}: {} (the driver knows CUDA up to {}.{}, this program uses {}.{})", what,
                  cudaGetErrorString(code), driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10));
}

Gpu GpuAt(int index) {
  cudaDeviceProp properties{};
  char bus_id[32] = {};
  Require(cudaGetDeviceProperties(&properties, index), "a GPU does not tell what it is");
  Require(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "a GPU does not tell where it is");
  return {index, properties.name, bus_id, static_cast<int64_t>(properties.totalGlobalMem),
          10 * properties.major + properties.minor};
}

class Module final : public CudaModule {
 public:
  std::string Versions() const override { return cuda::Versions(); }

  std::vector<Gpu> Gpus() const override {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaErrorNoDevice) Require(code, "no GPU can be used");
    std::vector<Gpu> gpus;
    for (int i = 0; i < count; ++i) gpus.push_back(GpuAt(i));
    return gpus;
  }

  std::unique_ptr<Device> Open(const Gpu& gpu, const GpuOptions& options) override {
    for (const std::string& older : CheckVersions(LoadedAndBuilt())) NoteFallback(older);
    static constexpr int kBuilt[] = {ESPALIER_GPU_ARCHITECTURES};
    if (const std::string compiled = CheckArchitecture(kBuilt, gpu.capability); !compiled.empty())
      NoteFallback(compiled);
    Require(cudaSetDevice(gpu.index), "the GPU cannot be opened");
    ConfigureCudaKernels(options.deterministic, options.gemm_plans);
    return std::make_unique<CudaDevice>(gpu, options);
  }

  GemmPlans MeasureGemms(std::span<const GemmDemand> demands,
                         const std::function<void(const GemmPlan&)>& measured) override {
    return cuda::MeasureGemms(demands, measured);
  }
  void UseGemmPlans(const GemmPlans& plans) override { espalier::UseGemmPlans(plans); }
  Platform PlatformOfAttention() const override {
    int device = 0;
    Require(cudaGetDevice(&device), "no GPU can be used");
    return {GpuAt(device).name, CudnnVersion()};
  }
  AttentionTime TimeAttentionGrad(const AttentionDemand& demand, int64_t workspace_bytes) override {
    return cuda::TimeAttentionGrad(demand, workspace_bytes);
  }
};

}  // namespace
}  // namespace espalier::cuda

extern "C" espalier::CudaModule* EspalierCudaModule() {
  static espalier::cuda::Module module;
  return &module;
}
