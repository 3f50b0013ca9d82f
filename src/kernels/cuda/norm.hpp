// Launchers of the RMSNorm kernels: rows of `width` elements of `dtype`, statistics in fp32, one a row; no addend, and
// no sum: nullptr.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

void LaunchRmsNorm(Dtype dtype, const void* x, const void* w, const void* addend, float eps, int64_t rows,
                   int64_t width, void* y, float* rstd, void* sum, cudaStream_t stream);
void LaunchRmsNormGrad(Dtype dtype, const void* x, const void* w, const float* rstd, const void* dy, const void* addend,
                       int64_t rows, int64_t width, void* dx, cudaStream_t stream);

/// dw f32[width], or dw plus it with `add`; `workspace` as ColumnSumBytes(1, rows, width).
void LaunchRmsNormWeightGrad(Dtype dtype, const void* x, const float* rstd, const void* dy, int64_t rows, int64_t width,
                             float* dw, bool add, float* workspace, cudaStream_t stream);

}  // namespace espalier::cuda
