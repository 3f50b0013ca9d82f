// Which attention cuDNN is given, in which parts, and the memory that is planned for it.
#include <gtest/gtest.h>

#include "espalier/ops/fused_attention.hpp"

namespace espalier {
namespace {

constexpr AttentionSizes kLayer{4, 2048, 2048, 32, 8, 128};
constexpr AttentionDemand kTraining{Dtype::kBf16, Dtype::kBf16, true, true};

/// bf16 scores of a part, as cuDNN pads them.
int64_t ScoreBytes(const AttentionSizes& x, AttentionPart part) {
  return part.batch * part.kv_heads * (x.heads / x.kv_heads) * ((x.queries + 63) / 64 * 64) * ((x.keys + 127) / 128 * 128) * 2;
}

TEST(FusedAttention, TakesTheLayersOfTraining) {
  EXPECT_TRUE(FusedAttentionTakes(kLayer, kTraining));
  EXPECT_TRUE(FusedAttentionTakes({1, 100, 100, 3, 3, 8}, kTraining));
  EXPECT_TRUE(FusedAttentionTakes({1, 64, 128, 4, 4, 64}, {Dtype::kBf16, Dtype::kBf16, false, false})) << "no mask";
}

TEST(FusedAttention, LeavesTheRestToThePlainKernel) {
  EXPECT_FALSE(FusedAttentionTakes(kLayer, {Dtype::kF32, Dtype::kF32, true, true})) << "fp32";
  EXPECT_FALSE(FusedAttentionTakes(kLayer, {Dtype::kBf16, Dtype::kF32, true, true})) << "a hop of a ring";
  EXPECT_FALSE(FusedAttentionTakes(kLayer, {Dtype::kBf16, Dtype::kBf16, true, false})) << "zigzag order";
  EXPECT_FALSE(FusedAttentionTakes({1, 64, 128, 4, 4, 64}, kTraining)) << "queries that are not the keys";
  EXPECT_FALSE(FusedAttentionTakes({1, 64, 64, 4, 4, 34}, kTraining)) << "odd heads";
  EXPECT_FALSE(FusedAttentionTakes(kLayer, kTraining, 7));
  for (const AttentionSizes& empty : {AttentionSizes{0, 64, 64, 4, 4, 64}, {1, 0, 0, 4, 4, 64}, {1, 64, 64, 0, 0, 64}}) EXPECT_FALSE(FusedAttentionTakes(empty, kTraining));
}

TEST(FusedAttention, TakesWideHeadsOnHopperAlone) {
  const AttentionSizes wide{1, 64, 64, 4, 4, 256};
  EXPECT_FALSE(FusedAttentionTakes(wide, kTraining, 8));
  EXPECT_TRUE(FusedAttentionTakes(wide, kTraining, 9));
  EXPECT_FALSE(FusedAttentionTakes({1, 64, 64, 4, 4, 264}, kTraining, 9));
}

TEST(FusedAttention, IsCutIntoEqualPartsBelowTheBound) {
  for (const AttentionSizes& x : {AttentionSizes{1, 64, 64, 4, 4, 64}, kLayer, {1, 4096, 4096, 32, 8, 128}, {3, 8192, 8192, 32, 8, 128}, {6, 1000, 1000, 12, 12, 64}, {5, 1024, 1024, 16, 16, 64}, {7, 300, 300, 6, 2, 40}}) {
    const AttentionPart part = PartOfBackward(x);
    EXPECT_EQ(x.batch % part.batch, 0);
    EXPECT_EQ(x.kv_heads % part.kv_heads, 0);
    EXPECT_TRUE(part.batch == 1 || part.kv_heads == x.kv_heads) << "lse of a part is dense";
    EXPECT_TRUE(ScoreBytes(x, part) <= kMostScoreBytes || (part.batch == 1 && part.kv_heads == 1));
    EXPECT_GE(FusedAttentionGradBytes(x), ScoreBytes(x, part));
  }
}

TEST(FusedAttention, IsWholeWhereItFits) {
  const AttentionPart part = PartOfBackward({8, 512, 512, 12, 12, 64});
  EXPECT_EQ(part.batch, 8);
  EXPECT_EQ(part.kv_heads, 12);
}

TEST(FusedAttention, LongSequencesAreCutByHeads) {
  const AttentionPart part = PartOfBackward({2, 4096, 4096, 32, 8, 128});
  EXPECT_EQ(part.batch, 1);
  EXPECT_EQ(part.kv_heads, 2);
}

TEST(FusedAttention, BoundsHoldTheSumsOfAllHeadsAtOnce) {
  const AttentionSizes x{4, 8192, 8192, 32, 8, 128};
  EXPECT_GE(FusedAttentionGradBytes(x), x.batch * x.heads * x.queries * x.head_dim * 4);
}

}  // namespace
}  // namespace espalier
