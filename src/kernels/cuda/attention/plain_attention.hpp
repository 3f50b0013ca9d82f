// The plain attention kernels, which support any mask and any order of positions. cuDNN's are faster if they support
// the call. Included by nvcc.
#pragma once

#include <cuda_runtime.h>

#include "kernels/arguments.hpp"

namespace espalier::cuda {

/// The widest head that these kernels support: a row of results is in registers.
inline constexpr int64_t kMaxHeadDim = 256;

void LaunchAttention(const AttentionArgs& args, cudaStream_t stream);

/// Every gradient is summed by one block in one order: no atomics.
void LaunchAttentionGrad(const AttentionGradArgs& args, cudaStream_t stream);

}  // namespace espalier::cuda
