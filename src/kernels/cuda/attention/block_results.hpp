// Launchers that combine the results of attention's blocks: from bf16, dense over a block's rows, to fp32 over all
// rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

/// Rows [begin, begin + rows) of each of `batch` sequences of `length`.
struct BlockRows {
  int64_t batch, length, begin, rows;
};

/// The content of the fp32 results: sums of the blocks so far, or undefined values. If undefined, rows outside of the
/// block become empty sums.
enum class Before : bool { kNothing, kSums };

/// part bf16[b,rows,h e] with part_lse f32[b,h,rows] into o f32[b,length,h e] and lse f32[b,h,length]: one softmax.
struct SoftmaxBlock {
  const void* part;
  const float* part_lse;
  int64_t heads, head_dim;
};
void LaunchMergeBlock(const BlockRows& rows, const SoftmaxBlock& part, Before before, float* o, float* lse,
                      cudaStream_t stream);

/// sum f32[b,length,width] += part bf16[b,rows,width]
void LaunchAddBlock(const BlockRows& rows, int64_t width, const void* part, Before before, float* sum,
                    cudaStream_t stream);

/// part f32[b,heads,rows] = the block's rows of lse f32[b,heads,length]
void LaunchTakeRows(const BlockRows& rows, int64_t heads, const float* lse, float* part, cudaStream_t stream);

}  // namespace espalier::cuda
