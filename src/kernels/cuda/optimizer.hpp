// Launchers of what happens once a step. Numbers that change from step to step lie on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../arithmetic.hpp"
#include "espalier/device_memory/partial_sums.hpp"

namespace espalier::cuda {

/// out f32[] = the sum of g^2; `workspace` as SumSquaresBytes(n).
void LaunchSumSquares(const float* g, int64_t n, float* out, double* workspace, cudaStream_t stream);

inline constexpr int kMostScalars = 256;

/// Some f32[], from index `first` on of all.
struct Scalars {
  const float* pointers[kMostScalars];
  int count, first;
};

/// Adds the scalars to what the ones before them gave, in order; from nothing if they are the first.
void LaunchAddScalars(const Scalars& scalars, ClipSquares* squares, cudaStream_t stream);

/// All f32[].
struct ClipArrays {
  const float *loss, *count;
  float *mean, *norm, *scale, *apply, *first;
};
void LaunchClip(const ClipArrays& arrays, const ClipSquares* squares, double clip_norm, cudaStream_t stream);

/// n elements each.
struct AdamwTensor {
  float *master, *exp_avg, *exp_avg_sq;
  const float* gradient;
  int64_t n;
};

/// The argument of one launch, which may have 32,764 bytes since CUDA 12.1.
struct AdamwTable {
  static constexpr int kMost = 736;
  AdamwTensor tensors[kMost];
  int32_t first_tile[kMost + 1];  ///< of each tensor among those of all; behind the last one their number
  int32_t count, decaying;        ///< tensors, and how many of them, from the first, decay
  AdamwConstants constants;
  const float *lr, *step, *scale, *apply;  ///< f32[]
};
static_assert(sizeof(AdamwTable) <= 32764);

/// Fills in the table's tiles.
void LaunchAdamw(AdamwTable& table, cudaStream_t stream);

}  // namespace espalier::cuda
