#include "planned_gpu.hpp"

#include "espalier/kernels/cuda/cuda_call.hpp"

namespace espalier::cuda {

PlannedGpu GetPlannedGpu() {
  static const int capability = [] {
    int device = 0, major = 0, minor = 0;
    CUDA_CALL(cudaGetDevice(&device));
    CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_CALL(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor;
  }();
  return {capability, ""};
}

}  // namespace espalier::cuda
