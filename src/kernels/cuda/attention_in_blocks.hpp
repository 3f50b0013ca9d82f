// Attention as calls of cuDNN, one for each block of scores, and the joining of what they find.
#pragma once

#include "espalier/device_memory/fused_attention.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier::cuda {

/// Has every block's kernel chosen and compiled. False if the library lacks one after all.
bool PrepareInBlocks(const AttentionInBlocks& blocks, const KernelCall& call);
bool PrepareGradInBlocks(const AttentionInBlocks& blocks, const KernelCall& call);

/// What was prepared: `call` is one of attention, or of attention_grad.
void AttentionByBlocks(const AttentionInBlocks& blocks, const KernelCall& call);
void AttentionGradByBlocks(const AttentionInBlocks& blocks, const KernelCall& call);

}  // namespace espalier::cuda
