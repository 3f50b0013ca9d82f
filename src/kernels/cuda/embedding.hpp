// Launchers of the kernels that read rows of a table by index, and add to them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// y[t] = the row of table[rows, width] for id ids[t] - first; 0 for ids outside it.
void LaunchEmbedding(Dtype dtype, const int32_t* ids, int64_t tokens, const void* table, int64_t first, int64_t rows,
                     int64_t width, void* y, cudaStream_t stream);

/// Rows of dy[batch, tokens, width], summed over the batch, added up by id, in the order of tokens, into table
/// f32[rows, width]; or to what it holds, with `add`. Ids outside it add nothing. At most 2^31 - 1 tokens.
void LaunchAddRows(Dtype dtype, const int32_t* ids, int64_t tokens, const void* dy, int64_t batch, float* table,
                   int64_t first, int64_t rows, int64_t width, bool add, cudaStream_t stream);

}  // namespace espalier::cuda
