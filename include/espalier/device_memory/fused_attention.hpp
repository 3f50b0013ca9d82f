// What cuDNN's attention takes, and the memory it may use: pure, so that the plan knows it and the kernels keep to it.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/device_memory/attention_blocks.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// Extents of attention on one rank: q [b,s,h e], k and v [b,t,g e].
struct AttentionSizes {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
};

/// A call as cuDNN may be given it: block by block.
struct AttentionInBlocks {
  AttentionSizes whole;
  std::vector<AttentionBlock> blocks;
  Dtype inputs, results;

  AttentionSizes SizesOf(const AttentionBlock& block) const;
  /// One block is all there is, and cuDNN writes the results themselves. Else each block's are parts, rounded to bf16,
  /// which are joined in fp32, in the order of blocks.
  bool IsOneCall() const;
};

/// True if cuDNN has a kernel on a GPU of compute capability `major`.x: scores in blocks, bf16, heads of a multiple of
/// 8 elements up to 128, on Hopper and later 256. The plan asks with the latest.
bool FusedAttentionTakes(const AttentionInBlocks& call, int major = 9);

/// How a backward call of cuDNN is cut: its deterministic one stores all scores of what it is given in bf16 (on Hopper
/// below 9.25 it knows no other), so it is given `batch` sequences and `kv_heads` heads of keys, with the heads of
/// queries that see them, at a time. Both divide what there is. All heads, if more than one sequence.
struct AttentionPart {
  int64_t batch, kv_heads;
};
AttentionPart PartOfBackward(const AttentionSizes& extents);

/// Scores of one part at most, unless one head of keys needs more.
inline constexpr int64_t kMostScoreBytes = int64_t{256} << 20;

/// Bytes that one call of cuDNN may use: a start that is asked for more ends (exit status 4).
int64_t FusedAttentionBytes(const AttentionSizes& extents);
int64_t FusedAttentionGradBytes(const AttentionSizes& extents);

/// Where the parts of a call lie in its workspace, as bytes that each begin on a multiple of kScratchAlignment; all 0
/// if it is one call.
inline constexpr int64_t kScratchAlignment = 256;
struct ForwardScratch {
  int64_t o, lse;  ///< of one block
  int64_t sums;    ///< o in fp32, unless it is wanted so

  int64_t Bytes() const { return o + lse + sums; }
};
struct BackwardScratch {
  int64_t dq, dk, dv, lse;  ///< of one block; lse: what it needs of it
  int64_t dq_sums, dk_sums, dv_sums;

  int64_t Bytes() const { return dq + dk + dv + lse + dq_sums + dk_sums + dv_sums; }
};
ForwardScratch ForwardScratchOf(const AttentionInBlocks& call);
BackwardScratch BackwardScratchOf(const AttentionInBlocks& call);

/// Workspace of a call: its parts, then what cuDNN may use for the largest of its blocks.
int64_t AttentionBytes(const AttentionInBlocks& call);
int64_t AttentionGradBytes(const AttentionInBlocks& call);

}  // namespace espalier
