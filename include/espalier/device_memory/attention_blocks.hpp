// The visible scores of attention as rectangles, for libraries that support a causal mask or none, but no mask by
// positions. Pure: the memory plan, the preparation of kernels and the kernels use the same blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/device_memory/attention_shape.hpp"

namespace espalier {

/// The scores of queries [query, query + queries) and keys [key, key + keys), as rows of the call. All are visible or,
/// with `causal`, there are as many keys as queries, and query i sees the first i + 1 keys, of these the last `window`
/// if the call has one.
struct AttentionBlock {
  int64_t query, queries, key, keys;
  bool causal;
};

/// Chunks of a sequence in zigzag order are split into blocks if they are a multiple of this number of rows, which is
/// cuDNN's tile of keys.
inline constexpr int64_t kBlockRows = 128;

/// Blocks that contain every visible score once, in the order in which their results are merged. Empty if there are no
/// scores or no such blocks. In zigzag order the rows must be whole shards of ranks, in chunks of a multiple of
/// kBlockRows, without a window; otherwise causal queries and keys must be the same rows. All ranks agree on whether
/// the list is empty.
std::vector<AttentionBlock> AttentionBlocksOf(const AttentionShape& shape);

}  // namespace espalier
