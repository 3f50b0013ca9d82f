// cuDNN's attention. Only fused_attention.cpp includes its front end.
#pragma once

#include <cuda_runtime.h>

#include "choose_part.hpp"
#include "espalier/device_memory/fused_attention.hpp"

namespace espalier::cuda {

/// Major compute capability of the current device; 0 without cuDNN.
int FusedAttentionMajor();

/// Extents of a call with a causal mask or none, the rows per sequence of the tensors that its operands are slices of,
/// and the method of its backward.
struct FusedCall {
  AttentionShape shape;
  int64_t query_rows, key_rows;
  BackwardMethod backward = {};
};

/// Device memory. Operands: q [b,s,h e] and, backward, o and d_o [b,s,h d], k [b,t,g e] and v [b,t,g d], bf16;
/// sequences are `query_rows` or `key_rows` rows apart. Dense: results (forward o; dq, dk, dv) in bf16 and lse f32
/// [b,h,s]. With shape.joined_row the rows of q, k and v, and of dq, dk and dv, are columns of wider ones. Backward
/// expects o and lse of the whole softmax, even if it gets only some of the keys: gradients are then the contribution
/// of these keys.
struct FusedMemory {
  void *q, *k, *v, *o, *lse;
  void *d_o, *dq, *dk, *dv;  ///< backward only
  void* workspace;
  int64_t workspace_bytes;
};

/// The library's answer about a part of a call. It compiles nothing, which would take a second. Throws UserError
/// (kDeck) if the library is too old for the method of backward.
Offer AskFusedAttention(const FusedCall& call, AttentionDirection direction, AttentionPart part);

/// Chooses and compiles. False if the library has no kernel, or none that fits the workspace: that is noted as a
/// fallback. Throws UserError (kDeck) if the library is too old for the method of backward.
bool PrepareFusedAttention(const FusedCall& call, int64_t workspace_bytes);
bool PrepareFusedAttentionGrad(const FusedCall& call, int64_t workspace_bytes);

/// Runs a prepared call.
void FusedAttention(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream);
void FusedAttentionGrad(const FusedCall& call, const FusedMemory& memory, cudaStream_t stream);

}  // namespace espalier::cuda
