// Rows, tokens for instance, that a warp computes by itself.
#pragma once

#include "pack.cuh"
#include "reduce.cuh"

namespace espalier::cuda {

inline constexpr int kWarp = 32, kWarpsOfBlock = kThreads / kWarp;

__device__ inline int LaneOfWarp() { return static_cast<int>(threadIdx.x % kWarp); }

/// Calls f(r) for all rows, each once in the grid, with all lanes of a warp.
template <typename F>
__device__ void ForWarpRows(int64_t rows, F f) {
  for (int64_t r = int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp; r < rows;
       r += int64_t{gridDim.x} * kWarpsOfBlock)
    f(r);
}

/// Calls f(i) for all elements, each once in the warp.
template <typename F>
__device__ void ForLanesOfWarp(int64_t n, F f) {
  for (int64_t i = LaneOfWarp(); i < n; i += kWarp) f(i);
}

/// Sum of term(i) over n elements, for all lanes.
template <typename F>
__device__ float SumOverWarp(int64_t n, F term) {
  float sum = 0;
  ForLanesOfWarp(n, [&](int64_t i) { sum += term(i); });
  return WarpReduce(sum, Plus{});
}

/// max of value(i) over n elements, for all lanes; a NaN loses.
template <typename F>
__device__ float LargestOverWarp(int64_t n, F value) {
  float max = -INFINITY;
  ForLanesOfWarp(n, [&](int64_t i) { max = Larger{}(value(i), max); });
  return WarpReduce(max, Larger{});
}

/// Blocks of kThreads.
inline dim3 WarpRowBlocks(int64_t rows) { return RowBlocks((rows + kWarpsOfBlock - 1) / kWarpsOfBlock); }

}  // namespace espalier::cuda
