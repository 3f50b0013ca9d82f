// Attention as calls of cuDNN, one for each block of scores, whose results are combined.
#pragma once

#include "espalier/device_memory/fused_attention.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cuda/runtime/launch_context.hpp"

namespace espalier::cuda {

/// Chooses and compiles every block's kernel. False if the library lacks one.
bool PrepareInBlocks(const AttentionInBlocks& blocks, int64_t workspace_bytes);
bool PrepareGradInBlocks(const AttentionInBlocks& blocks, int64_t workspace_bytes);

/// Runs the prepared kernels.
void AttentionByBlocks(const AttentionInBlocks& blocks, const AttentionArgs& args, const LaunchContext& context);
void AttentionGradByBlocks(const AttentionInBlocks& blocks, const AttentionGradArgs& args,
                           const LaunchContext& context);

}  // namespace espalier::cuda
