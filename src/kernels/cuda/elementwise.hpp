// Launchers of the element-wise kernels: device pointers, n elements each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

/// y = x, or y + x with `add`.
void LaunchAccumulate(const float* x, float* y, int64_t n, bool add, cudaStream_t stream);

}  // namespace espalier::cuda
