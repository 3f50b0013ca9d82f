// Launchers of what happens once a step. Numbers that change from step to step lie on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../arithmetic.hpp"
#include "../partials.hpp"

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

/// n elements each; results may lie on what they replace.
struct AdamwArrays {
  const float *master, *exp_avg, *exp_avg_sq, *gradient;
  float *next_master, *next_exp_avg, *next_exp_avg_sq;
  int64_t n;
  const float *lr, *step, *scale, *apply;  ///< f32[]
};
void LaunchAdamw(const AdamwArrays& arrays, const AdamwConstants& constants, cudaStream_t stream);

}  // namespace espalier::cuda
