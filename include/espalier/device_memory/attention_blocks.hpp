// The visible scores of attention as rectangles, for libraries that know the causal mask, or none, but no mask by
// positions. Pure: the plan of memory, the preparation of kernels and the kernels themselves read the same blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

/// The rows that a call holds of a sequence of `length`, as it lies in memory: in zigzag order on `cp` ranks
/// (mesh/zigzag.hpp) or, with cp = 1, in the order of positions, where `length` says nothing.
struct AttentionRows {
  int64_t cp, length;
  int64_t query, queries;  ///< the first, and how many
  int64_t key, keys;
  bool causal;
};

/// Scores of queries [query, query + queries) and keys [key, key + keys), by rows of the call: all visible or, with
/// `causal`, as many keys as queries, of which query i sees the first i + 1.
struct AttentionBlock {
  int64_t query, queries, key, keys;
  bool causal;
};

/// Chunks of a sequence in zigzag order are cut into blocks if they are a multiple of so many rows: cuDNN's tile of
/// keys.
inline constexpr int64_t kBlockRows = 128;

/// Blocks that hold every visible score once, in the order in which what they find is joined. None if there are no
/// scores, or no such blocks: in zigzag order rows must be whole pieces of ranks, in chunks of a multiple of
/// kBlockRows; without it causal queries must be the keys'. Whether there are some is the same for all ranks.
std::vector<AttentionBlock> AttentionBlocksOf(const AttentionRows& rows);

}  // namespace espalier
