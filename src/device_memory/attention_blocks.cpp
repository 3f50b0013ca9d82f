// In zigzag order shard r holds the chunks at positions r and 2 cp - 1 - r, so its own scores have a causal mask in
// memory order. The first chunk of an earlier shard is seen by all queries of a shard, the second chunk by none. The
// second chunk of a shard sees all keys of later shards, the first chunk none:
//
//   keys         0 5   1 4   2 3      cp = 3; chunks by position, two per shard
//   queries  0   c .   . .   . .      c  a shard's own scores, causal
//            5   c c   r r   r r      r  one block: a second chunk and the keys of all later shards
//            1   k .   c .   . .      k  one block: a first chunk and the queries of all later shards
//            4   k .   c c   r r
//            2   k .   k .   c .
//            3   k .   k .   c c
//
// A hop of a ring is one of these blocks; the queries of one rank with all keys are a row of two chunks.
#include "espalier/device_memory/attention_blocks.hpp"

#include <algorithm>

namespace espalier {
namespace {

/// Shards [first, end) of a sequence, whose rows are the rows of a call from 0.
struct Shards {
  int64_t first, end, rows;  ///< rows of a shard

  int64_t RowOf(int64_t shard) const { return (shard - first) * rows; }
  /// The first shard after `shard`.
  int64_t After(int64_t shard) const { return std::max(first, shard + 1); }
};

std::vector<AttentionBlock> BlocksOfShards(const Shards& q, const Shards& k) {
  const int64_t shard = q.rows, chunk = shard / 2;
  std::vector<AttentionBlock> blocks;
  for (int64_t p = std::max(q.first, k.first); p < std::min(q.end, k.end); ++p)
    blocks.push_back({q.RowOf(p), shard, k.RowOf(p), shard, true});
  for (int64_t p = k.first; p < k.end; ++p)
    if (const int64_t later = q.After(p); later < q.end)
      blocks.push_back({q.RowOf(later), q.RowOf(q.end) - q.RowOf(later), k.RowOf(p), chunk, false});
  for (int64_t p = q.first; p < q.end; ++p)
    if (const int64_t later = k.After(p); later < k.end)
      blocks.push_back({q.RowOf(p) + chunk, chunk, k.RowOf(later), k.RowOf(k.end) - k.RowOf(later), false});
  return blocks;
}

}  // namespace

std::vector<AttentionBlock> AttentionBlocksOf(const AttentionShape& x) {
  const int64_t query = x.query_shard.start, key = x.key_shard.start;
  const int64_t cp = x.query_shard.cp, length = x.query_shard.length;
  if (x.queries == 0 || x.keys == 0) return {};
  if (!x.causal) return {{0, x.queries, 0, x.keys, false}};
  if (cp == 1 && query == key && x.queries == x.keys) return {{0, x.queries, 0, x.keys, true}};
  const int64_t shard = length / cp;
  if (cp == 1 || x.window > 0 || shard == 0 || length % cp != 0 || shard % (2 * kBlockRows) != 0) return {};
  for (int64_t rows : {query, x.queries, key, x.keys})
    if (rows % shard != 0) return {};
  return BlocksOfShards({query / shard, (query + x.queries) / shard, shard},
                        {key / shard, (key + x.keys) / shard, shard});
}

}  // namespace espalier
