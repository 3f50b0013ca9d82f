// In zigzag order piece r holds the chunks at positions r and 2 cp - 1 - r, so its own scores are causal as they lie.
// The first chunk of an earlier piece is seen by all of its queries, the second by none; its second chunk sees all keys
// of later pieces, its first none:
//
//   keys         0 5   1 4   2 3      cp = 3; chunks by position, two to a piece
//   queries  0   c .   . .   . .      c  a piece's own scores, causal
//            5   c c   r r   r r      r  one block: a second chunk and the keys of all later pieces
//            1   k .   c .   . .      k  one block: a first chunk and the queries of all later pieces
//            4   k .   c c   r r
//            2   k .   k .   c .
//            3   k .   k .   c c
//
// A hop of a ring is one of these blocks; queries of one rank and all keys are a row of two chunks.
#include "espalier/device_memory/attention_blocks.hpp"

#include <algorithm>

namespace espalier {
namespace {

/// Pieces [first, end) of a sequence, which a call holds as its rows from 0.
struct Pieces {
  int64_t first, end, rows;  ///< rows of a piece

  int64_t RowOf(int64_t piece) const { return (piece - first) * rows; }
  /// Of those behind `piece`, the first.
  int64_t Behind(int64_t piece) const { return std::max(first, piece + 1); }
};

std::vector<AttentionBlock> BlocksOfPieces(const Pieces& q, const Pieces& k) {
  const int64_t piece = q.rows, chunk = piece / 2;
  std::vector<AttentionBlock> blocks;
  for (int64_t p = std::max(q.first, k.first); p < std::min(q.end, k.end); ++p)
    blocks.push_back({q.RowOf(p), piece, k.RowOf(p), piece, true});
  for (int64_t p = k.first; p < k.end; ++p)
    if (const int64_t later = q.Behind(p); later < q.end)
      blocks.push_back({q.RowOf(later), q.RowOf(q.end) - q.RowOf(later), k.RowOf(p), chunk, false});
  for (int64_t p = q.first; p < q.end; ++p)
    if (const int64_t later = k.Behind(p); later < k.end)
      blocks.push_back({q.RowOf(p) + chunk, chunk, k.RowOf(later), k.RowOf(k.end) - k.RowOf(later), false});
  return blocks;
}

}  // namespace

std::vector<AttentionBlock> AttentionBlocksOf(const AttentionRows& x) {
  if (x.queries == 0 || x.keys == 0) return {};
  if (!x.causal) return {{0, x.queries, 0, x.keys, false}};
  if (x.cp == 1 && x.query == x.key && x.queries == x.keys) return {{0, x.queries, 0, x.keys, true}};
  const int64_t piece = x.length / x.cp;
  if (x.cp == 1 || piece == 0 || x.length % x.cp != 0 || piece % (2 * kBlockRows) != 0) return {};
  for (int64_t rows : {x.query, x.queries, x.key, x.keys})
    if (rows % piece != 0) return {};
  return BlocksOfPieces({x.query / piece, (x.query + x.queries) / piece, piece},
                        {x.key / piece, (x.key + x.keys) / piece, piece});
}

}  // namespace espalier
