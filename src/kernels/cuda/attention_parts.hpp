// Launchers that join what attention finds block by block: bf16 parts, dense over a block's rows, into fp32 results
// over all rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

/// Rows [begin, begin + rows) of each of `batch` sequences of `length`.
struct PartRows {
  int64_t batch, length, begin, rows;
};

/// What is there already: something to join with, or nothing, not even zeros, and rows outside the part become those of
/// an empty sum.
enum class Before : bool { kNothing, kSums };

/// part bf16[b,rows,h e] with part_lse f32[b,h,rows] into o f32[b,length,h e] and lse f32[b,h,length]: one softmax.
struct SoftmaxPart {
  const void* part;
  const float* part_lse;
  int64_t heads, head_dim;
};
void LaunchMergePart(const PartRows& rows, const SoftmaxPart& part, Before before, float* o, float* lse,
                     cudaStream_t stream);

/// sum f32[b,length,width] += part bf16[b,rows,width]
void LaunchAddPart(const PartRows& rows, int64_t width, const void* part, Before before, float* sum,
                   cudaStream_t stream);

/// part f32[b,heads,rows] = those of lse f32[b,heads,length]
void LaunchTakeRows(const PartRows& rows, int64_t heads, const float* lse, float* part, cudaStream_t stream);

}  // namespace espalier::cuda
