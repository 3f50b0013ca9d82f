// Launchers of the LayerNorm kernels: rows of `width` elements of `dtype`, statistics in fp32, one a row; no addend,
// and no sum: nullptr.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

void LaunchLayerNorm(Dtype dtype, const void* x, const void* w, const void* bias, const void* addend, float eps,
                     int64_t rows, int64_t width, void* y, float* mean, float* rstd, void* sum, cudaStream_t stream);
void LaunchLayerNormGrad(Dtype dtype, const void* x, const void* w, const float* mean, const float* rstd,
                         const void* dy, const void* addend, int64_t rows, int64_t width, void* dx,
                         cudaStream_t stream);

/// dw and dbias f32[width], or these plus it with `add`; `workspace` as ColumnSumBytes(2, rows, width).
void LaunchLayerNormWeightGrad(Dtype dtype, const void* x, const float* mean, const float* rstd, const void* dy,
                               int64_t rows, int64_t width, float* dw, float* dbias, bool add, float* workspace,
                               cudaStream_t stream);

}  // namespace espalier::cuda
