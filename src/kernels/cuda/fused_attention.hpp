// cuDNN's attention. Its front end is included by fused_attention.cpp alone; the emulation has none, and answers no.
#pragma once

#include <cuda_runtime.h>

#include "espalier/ops/fused_attention.hpp"

namespace espalier::cuda {

/// Compute capability of the current device, its first number; 0 where there is no cuDNN.
int FusedAttentionMajor();

/// Extents of a call, and its mask: the causal one, or none.
struct FusedCall {
  AttentionSizes sizes;
  bool causal;
};

/// Device memory: q, o and their gradients [b,s,h e], k, v and theirs [b,t,g e], all bf16; lse f32 [b,h,s].
struct FusedMemory {
  void *q, *k, *v, *o, *lse;
  void *d_o, *dq, *dk, *dv;  ///< backward only
  void* workspace;
  int64_t workspace_bytes;
};

/// Chooses and compiles. False if the library has no kernel after all, which it says on stderr. Throws UserError (kDoesNotFit) if the one
/// it has wants more memory.
bool PrepareFusedAttention(const FusedCall& call, int64_t workspace_bytes);
bool PrepareFusedAttentionGrad(const FusedCall& call, int64_t workspace_bytes);

/// What was prepared.
void FusedAttention(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream);
void FusedAttentionGrad(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream);

}  // namespace espalier::cuda
