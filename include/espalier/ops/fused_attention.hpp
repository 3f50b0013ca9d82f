// What cuDNN's attention takes, and the memory it may use: pure, so that the plan knows it and the kernels keep to it.
#pragma once

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier {

/// Extents of attention on one rank: q [b,s,h e], k and v [b,t,g e].
struct AttentionSizes {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
};

/// What a call asks for beside its extents.
struct AttentionDemand {
  Dtype inputs, results;
  bool causal;
  bool plain_order;  ///< rows lie in the order of their positions, and queries and keys begin at the same one
};

/// True if cuDNN has a kernel on a GPU of compute capability `major`.x: bf16 throughout; no mask, or the causal one of queries on
/// themselves; heads of a multiple of 8 elements up to 128, on Hopper and later 256. The plan asks with the latest.
bool FusedAttentionTakes(const AttentionSizes& extents, const AttentionDemand& demand, int major = 9);

/// How a backward call is cut: cuDNN's deterministic one stores all scores of what it is given in bf16 (on Hopper below 9.25 it knows
/// no other), so it is given `batch` sequences and `kv_heads` heads of keys, with the heads of queries that see them, at a time. Both
/// divide what there is. All heads, if more than one sequence.
struct AttentionPart {
  int64_t batch, kv_heads;
};
AttentionPart PartOfBackward(const AttentionSizes& extents);

/// Scores of one part at most, unless one head of keys needs more.
inline constexpr int64_t kMostScoreBytes = int64_t{256} << 20;

/// Bytes that cuDNN may use: a start that is asked for more ends (exit status 4).
int64_t FusedAttentionBytes(const AttentionSizes& extents);
int64_t FusedAttentionGradBytes(const AttentionSizes& extents);

}  // namespace espalier
