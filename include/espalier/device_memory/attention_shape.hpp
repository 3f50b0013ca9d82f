// The extents and the mask of attention on one rank, shared by the memory plan and the kernels.
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

/// q [batch,queries,heads head_dim], k [batch,keys,kv_heads head_dim], v [batch,keys,kv_heads ValueDim()]; the results
/// o have the width heads ValueDim(). A causal query sees the keys from its first key to itself, by position.
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  bool causal = false;
  SequenceShard query_shard{}, key_shard{};
  int64_t window = 0;  ///< causal queries see so many keys, themselves included; 0: all
  /// Elements from one token to the next in q, k and v, and in their gradients, where they are columns of one tensor;
  /// 0: each is dense.
  int64_t joined_row = 0;
  int64_t value_dim = 0;   ///< features of a head of values and of results; 0: head_dim
  float score_factor = 1;  ///< scores are q k score_factor / sqrt(head_dim)

  constexpr bool IsEmpty() const { return batch == 0 || queries == 0 || keys == 0 || heads == 0 || kv_heads == 0; }
  /// Elements from one token to the next.
  constexpr int64_t QueryRow() const { return joined_row > 0 ? joined_row : heads * head_dim; }
  constexpr int64_t KeyRow() const { return joined_row > 0 ? joined_row : kv_heads * head_dim; }
  constexpr int64_t ValueDim() const { return value_dim > 0 ? value_dim : head_dim; }
  constexpr int64_t ValueRow() const { return joined_row > 0 ? joined_row : kv_heads * ValueDim(); }
  constexpr int64_t ResultRow() const { return heads * ValueDim(); }
  constexpr int64_t KvHeadOf(int64_t head) const { return head * kv_heads / heads; }
  /// Position of the first key that query row i of sequence b sees: the later one of the window's and the document's.
  /// `first_keys` i32[batch,queries] are those of the documents; nullptr: the whole sequence is one.
  constexpr int64_t FirstKey(const int32_t* first_keys, int64_t b, int64_t i) const {
    const int64_t document = first_keys == nullptr ? 0 : first_keys[b * queries + i];
    const int64_t in_window = window == 0 ? 0 : query_shard.PositionOf(i) - window + 1;
    return document > in_window ? document : in_window;
  }
  /// Key row j of sequence b is visible to query row i.
  constexpr bool Sees(const int32_t* first_keys, int64_t b, int64_t i, int64_t j) const {
    const int64_t key = key_shard.PositionOf(j);
    return !causal || (FirstKey(first_keys, b, i) <= key && key <= query_shard.PositionOf(i));
  }
};

}  // namespace espalier
