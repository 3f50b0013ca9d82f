// The extents of attention on one rank, shared by the memory plan and the kernels.
#pragma once

#include <cstdint>

#include "espalier/mesh/zigzag.hpp"

namespace espalier {

/// A rank's shard of a sequence: which position each of its rows holds (mesh/zigzag.hpp).
struct SequenceShard {
  int64_t start = 0;           ///< index of the first row in the sequence as it is in memory
  int64_t length = 0, cp = 1;  ///< of the whole sequence; cp = 1: rows are in the order of their positions

  constexpr int64_t PositionOf(int64_t row) const { return ZigzagPosition(start + row, length, cp); }
};

/// q [batch,queries,heads head_dim], k and v [batch,keys,kv_heads head_dim].
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  bool causal = false;
  SequenceShard query_shard{}, key_shard{};

  constexpr int64_t KvHeadOf(int64_t head) const { return head * kv_heads / heads; }
  /// Key row j is visible to query row i.
  constexpr bool Sees(int64_t i, int64_t j) const {
    return !causal || key_shard.PositionOf(j) <= query_shard.PositionOf(i);
  }
};

}  // namespace espalier
