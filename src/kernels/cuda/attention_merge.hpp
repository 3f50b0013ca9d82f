// Launcher of the merge of two parts of one softmax, each over keys of its own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// Parts f32[batch, length, heads e] with their lse f32[batch, heads, length]; the result o is of `dtype` and may be
/// oa.
struct MergedParts {
  const float *oa, *lse_a, *ob, *lse_b;
  int64_t batch, length, heads, head_dim;
};
void LaunchAttentionMerge(Dtype dtype, const MergedParts& parts, void* o, float* lse, cudaStream_t stream);

}  // namespace espalier::cuda
