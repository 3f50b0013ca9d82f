// Launchers of the element-wise kernels: device pointers to n elements of `dtype` each; outputs may lie on inputs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

inline constexpr int kMostTerms = 64;

/// The terms of a sum.
struct Terms {
  const void* pointers[kMostTerms];
  int count;
};

/// y = the sum of the terms, in order.
void LaunchAdd(Dtype dtype, const Terms& terms, void* y, int64_t n, cudaStream_t stream);

/// y = x, or y + x with `add`.
void LaunchAccumulate(const float* x, float* y, int64_t n, bool add, cudaStream_t stream);

/// y = silu(gate) up.
void LaunchSwiglu(Dtype dtype, const void* gate, const void* up, void* y, int64_t n, cudaStream_t stream);
void LaunchSwigluGrad(Dtype dtype, const void* gate, const void* up, const void* dy, void* dgate, void* dup, int64_t n,
                      cudaStream_t stream);

/// y = x in another element type.
void LaunchCast(Dtype from, Dtype to, const void* x, void* y, int64_t n, cudaStream_t stream);

}  // namespace espalier::cuda
