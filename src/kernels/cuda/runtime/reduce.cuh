// Sums, maxima and running sums over a warp and a block, as trees of fixed shape.
#pragma once

#include "espalier/kernels/cuda/launch.cuh"

namespace espalier::cuda {

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN loses, as in the other backends.
struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

template <typename T, typename Combine>
__device__ T WarpReduce(T x, Combine combine) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

/// The result is for every thread of a block of whole warps, up to 1024 threads in x.
template <typename T, typename Combine>
__device__ T BlockReduce(T x, T neutral, Combine combine) {
  __shared__ T parts[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  x = WarpReduce(x, combine);
  __syncthreads();  // an earlier call's parts have been read
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return WarpReduce(lane < static_cast<int>(blockDim.x / 32) ? parts[lane] : neutral, combine);
}

template <typename T>
__device__ T BlockSum(T x) {
  return BlockReduce(x, T{0}, Plus{});
}

/// The sum over the threads before the calling one, and over all.
struct RunningSum {
  int32_t before, all;
};
/// For a block of whole warps, up to 1024 threads in x.
__device__ inline RunningSum BlockRunningSum(int32_t x) {
  __shared__ int32_t parts[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int32_t sum = x;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  __syncthreads();  // an earlier call's parts have been read
  if (lane == 31) parts[warp] = sum;
  __syncthreads();
  RunningSum running{sum - x, 0};
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
    if (w < warp) running.before += parts[w];
    running.all += parts[w];
  }
  return running;
}

}  // namespace espalier::cuda
