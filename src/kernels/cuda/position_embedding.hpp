// Launcher of the position embedding; its adjoint is LaunchAddRows (embedding.hpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// y = x plus, in row r, the row of table[table_rows, width] at positions[r mod length]; y may be x. A position that
/// the table lacks ends the job.
void LaunchPositionEmbedding(Dtype dtype, const void* x, const int32_t* positions, int64_t length, const void* table,
                             int64_t table_rows, int64_t rows, int64_t width, void* y, cudaStream_t stream);

}  // namespace espalier::cuda
