// Launchers of the GELU kernels: device pointers to n elements of `dtype` each; outputs may lie on inputs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

void LaunchGelu(Dtype dtype, const void* x, void* y, int64_t n, cudaStream_t stream);
void LaunchGeluGrad(Dtype dtype, const void* x, const void* dy, void* dx, int64_t n, cudaStream_t stream);

}  // namespace espalier::cuda
