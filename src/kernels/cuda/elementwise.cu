#include "elementwise.hpp"

#include "launch.cuh"

namespace espalier::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void Accumulate(const float* x, float* y, int64_t n, bool add) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    y[i] = add ? y[i] + x[i] : x[i];
}

}  // namespace

void LaunchAccumulate(const float* x, float* y, int64_t n, bool add, cudaStream_t stream) {
  if (n == 0) return;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  Launch(Accumulate, dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096)), dim3(kThreads), 0, stream, x, y, n, add);
}

}  // namespace espalier::cuda
