// Launchers of the bias kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// y = x + bias in every row; y may be x.
void LaunchAddBias(Dtype dtype, const void* x, const void* bias, int64_t rows, int64_t width, void* y,
                   cudaStream_t stream);

/// out f32[width] = the sum over rows, or out plus it with `add`; `workspace` as ColumnSumBytes(1, rows, width).
void LaunchBiasGrad(Dtype dtype, const void* dy, int64_t rows, int64_t width, float* out, bool add, float* workspace,
                    cudaStream_t stream);

}  // namespace espalier::cuda
