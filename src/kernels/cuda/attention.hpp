// Launchers of the plain attention kernels: device pointers to q, o and their gradients [b,s,h e], to k, v and theirs
// [b,t,g e], all dense, and to lse f32 [b,h,s]. They take any masks and any layout of sequences; cuDNN's are quicker
// where they can serve.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/mesh/zigzag.hpp"

namespace espalier::cuda {

/// The widest head that the plain kernels take: a row of results stands in registers.
inline constexpr int64_t kWidestHead = 256;

/// A local piece of a sequence, as SequencePiece has it.
struct Piece {
  int64_t start, length, cp;

  __host__ __device__ int64_t PositionOf(int64_t row) const { return ZigzagPosition(start + row, length, cp); }
};

struct AttentionExtents {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  bool causal;
  Piece query_piece, key_piece;
};

/// What a forward or backward call reads; o, lse and d_o only backward. All but lse f32 or, with `bf16`, bf16.
struct AttentionInputs {
  const void *q, *k, *v, *o;
  const float* lse;
  const void* d_o;
  bool bf16;
};

/// Results are f32 or bf16, whatever the inputs are.
struct AttentionResults {
  void* o;
  float* lse;
  bool bf16;
};
struct AttentionGradients {
  void *dq, *dk, *dv;
  bool bf16;
};

/// A query that sees no key: o = 0, lse = -inf.
void LaunchAttention(const AttentionExtents& extents, const AttentionInputs& inputs, const AttentionResults& results,
                     cudaStream_t stream);

/// Every gradient is summed by one block in one order: no atomics.
void LaunchAttentionGrad(const AttentionExtents& extents, const AttentionInputs& inputs,
                         const AttentionGradients& results, cudaStream_t stream);

}  // namespace espalier::cuda
