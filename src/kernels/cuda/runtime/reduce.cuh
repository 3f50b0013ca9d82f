// Sums and maxima over a warp and a block, as trees of fixed shape.
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

}  // namespace espalier::cuda
