// Attention in zigzag order as blocks: they contain every visible score exactly once.
#include "espalier/device_memory/attention_blocks.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

constexpr int64_t kPart = 2 * kBlockRows;

/// Rows [first, first + count) of a sequence.
struct Rows {
  int64_t first, count;
};
AttentionShape Shape(int64_t cp, int64_t length, Rows queries, Rows keys, bool causal = true) {
  return {1, queries.count, keys.count, 1, 1, 8, causal, {queries.first, length, cp}, {keys.first, length, cp}};
}
AttentionShape Hop(int64_t cp, int64_t rank, int64_t hop) {
  return Shape(cp, cp * kPart, {rank * kPart, kPart}, {(rank + cp - hop) % cp * kPart, kPart});
}
AttentionShape Gathered(int64_t cp, int64_t rank) {
  return Shape(cp, cp * kPart, {rank * kPart, kPart}, {0, cp * kPart});
}
AttentionShape WholeSequences(int64_t cp) { return Shape(cp, cp * kPart, {0, cp * kPart}, {0, cp * kPart}); }

/// By query, the number of blocks that show each key.
std::vector<int> TimesSeen(const AttentionShape& rows) {
  std::vector<int> seen(static_cast<size_t>(rows.queries * rows.keys));
  for (const AttentionBlock& block : AttentionBlocksOf(rows))
    for (int64_t i = 0; i < block.queries; ++i)
      for (int64_t j = 0; j < (block.causal ? i + 1 : block.keys); ++j)
        ++seen[static_cast<size_t>((block.query + i) * rows.keys + block.key + j)];
  return seen;
}

void ExpectAllOnce(const AttentionShape& x) {
  const std::vector<int> seen = TimesSeen(x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.queries; ++i)
    for (int64_t j = 0; j < x.keys; ++j) wrong += seen[static_cast<size_t>(i * x.keys + j)] != x.Sees(nullptr, 0, i, j);
  EXPECT_EQ(wrong, 0) << "cp " << x.query_shard.cp << ", " << x.queries << " queries from " << x.query_shard.start
                      << ", " << x.keys << " keys from " << x.key_shard.start;
}

TEST(AttentionBlocks, HoldEveryVisibleScoreOnce) {
  for (int64_t cp : {2, 3, 4, 5}) {
    ExpectAllOnce(WholeSequences(cp));
    for (int64_t rank = 0; rank < cp; ++rank) {
      ExpectAllOnce(Gathered(cp, rank));
      for (int64_t hop = 0; hop < cp; ++hop) ExpectAllOnce(Hop(cp, rank, hop));
    }
  }
}

TEST(AttentionBlocks, AreFewAndLarge) {
  for (int64_t hop : {0, 1, 2, 3}) EXPECT_EQ(AttentionBlocksOf(Hop(4, 2, hop)).size(), 1u);
  EXPECT_EQ(AttentionBlocksOf(Gathered(4, 0)).size(), 2u);
  EXPECT_EQ(AttentionBlocksOf(Gathered(4, 2)).size(), 4u);
  EXPECT_EQ(AttentionBlocksOf(WholeSequences(4)).size(), 10u);
}

TEST(AttentionBlocks, TheOrderOfPositionsIsOne) {
  const std::vector<AttentionBlock> own = AttentionBlocksOf(Shape(1, 0, {64, 65}, {64, 65}, true)),
                                    all = AttentionBlocksOf(Shape(3, 30, {0, 10}, {0, 30}, false));
  ASSERT_EQ(own.size(), 1u);
  EXPECT_TRUE(own[0].causal && own[0].queries == 65 && own[0].keys == 65);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(!all[0].causal && all[0].queries == 10 && all[0].keys == 30) << "without a mask order says nothing";
}

TEST(AttentionBlocks, OfOtherRowsThereAreNone) {
  EXPECT_TRUE(AttentionBlocksOf(Shape(1, 0, {0, 64}, {0, 128}, true)).empty()) << "queries that are not the keys";
  EXPECT_TRUE(AttentionBlocksOf(Shape(1, 0, {64, 64}, {0, 64}, true)).empty()) << "later queries";
  EXPECT_TRUE(AttentionBlocksOf(Shape(2, 4 * 64, {0, 2 * 64}, {0, 2 * 64}, true)).empty()) << "short chunks";
  EXPECT_TRUE(AttentionBlocksOf(Shape(2, 4 * 192, {0, 2 * 192}, {0, 2 * 192}, true)).empty())
      << "chunks that do not fill tiles";
  EXPECT_TRUE(AttentionBlocksOf(Shape(2, 2 * kPart, {128, kPart}, {0, kPart}, true)).empty()) << "no whole shards";
  EXPECT_TRUE(AttentionBlocksOf(Shape(1, 0, {0, 0}, {0, 64}, true)).empty() &&
              AttentionBlocksOf(Shape(1, 0, {0, 64}, {0, 0}, false)).empty())
      << "no scores";
}

}  // namespace
}  // namespace espalier
