// Launchers of the rotary position embedding's kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// Rows of `width` elements are heads of 2 `half`; row r takes row r mod `positions` of table f32[positions, 2 half],
/// its sines times `sign`. y may be x.
void LaunchRope(Dtype dtype, const void* x, const float* table, float sign, int64_t rows, int64_t positions,
                int64_t width, int64_t half, void* y, cudaStream_t stream);

/// table f32[count, head_dim]: cosines, then sines.
void LaunchRopeTable(const int32_t* positions, int64_t count, double theta, int64_t head_dim, float* table,
                     cudaStream_t stream);

}  // namespace espalier::cuda
