#include "espalier/kernels/cuda/launch.cuh"
#include "matmul.hpp"

namespace espalier::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void Clear(uint16_t* data, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    data[i] = 0;
}

}  // namespace

void LaunchClear(void* data, int64_t bytes, cudaStream_t stream) {
  const int64_t n = bytes / 2, blocks = (n + kThreads - 1) / kThreads;
  if (n == 0) return;
  Launch(Clear, dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096)), dim3(kThreads), 0, stream,
         static_cast<uint16_t*>(data), n);
}

}  // namespace espalier::cuda
