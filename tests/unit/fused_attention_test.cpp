// Which attention cuDNN gets, in which parts, and the memory that is planned for it.
#include "espalier/device_memory/fused_attention.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

constexpr AttentionShape kLayer{4, 2048, 2048, 32, 8, 128};
constexpr auto kForward = AttentionDirection::kForward, kBackward = AttentionDirection::kBackward;

/// Causal attention of training in the order of positions; queries that differ from the keys see all of them.
AttentionInBlocks InBlocks(AttentionShape x, Dtype dtype = Dtype::kBf16) {
  x.causal = x.queries == x.keys;
  return {x, AttentionBlocksOf(x), dtype, dtype};
}

/// Rank 1 of 4 in zigzag order; `hop` < 0: with all keys.
AttentionInBlocks OnRing(int64_t rows, int64_t hop) {
  const int64_t keys = hop < 0 ? 4 * rows : rows, key = hop < 0 ? 0 : (5 - hop) % 4 * rows;
  const AttentionShape x{2, rows, keys, 32, 8, 128, true, {rows, 4 * rows, 4}, {key, 4 * rows, 4}};
  return {x, AttentionBlocksOf(x), Dtype::kBf16, hop < 0 ? Dtype::kBf16 : Dtype::kF32};
}

/// bf16 scores of a part, as cuDNN pads them.
int64_t ScoreBytes(const AttentionShape& x, AttentionPart part) {
  return part.batch * part.kv_heads * (x.heads / x.kv_heads) * ((x.queries + 63) / 64 * 64) *
         ((x.keys + 127) / 128 * 128) * 2;
}

bool BothTake(const AttentionInBlocks& call, int major = 9) {
  const bool taken = FusedAttentionTakes(call, kForward, major);
  EXPECT_EQ(FusedAttentionTakes(call, kBackward, major), taken);
  return taken;
}

TEST(FusedAttention, TakesTheLayersOfTraining) {
  EXPECT_TRUE(BothTake(InBlocks(kLayer)));
  EXPECT_TRUE(BothTake(InBlocks({1, 100, 100, 3, 3, 8})));
  EXPECT_TRUE(BothTake(InBlocks({1, 64, 128, 4, 4, 64}))) << "no mask";
  EXPECT_TRUE(BothTake(OnRing(1024, 2))) << "a hop of a ring";
  EXPECT_TRUE(BothTake(OnRing(1024, -1))) << "zigzag order";
}

TEST(FusedAttention, LeavesTheRestToThePlainKernel) {
  EXPECT_FALSE(BothTake(InBlocks(kLayer, Dtype::kF32))) << "fp32";
  EXPECT_FALSE(BothTake(OnRing(128, 0))) << "short chunks";
  EXPECT_FALSE(BothTake(InBlocks({1, 64, 64, 4, 4, 34}))) << "odd heads";
  EXPECT_FALSE(BothTake(InBlocks({1, 64, 64, 4, 4, 264}))) << "wide heads";
  EXPECT_FALSE(BothTake(InBlocks(kLayer), 7));
  for (const AttentionShape& empty : {AttentionShape{0, 64, 64, 4, 4, 64}, {1, 0, 0, 4, 4, 64}, {1, 64, 64, 0, 0, 64}})
    EXPECT_FALSE(BothTake(InBlocks(empty)));
}

TEST(FusedAttention, HasABackwardOfWideHeadsOnHopperAlone) {
  const AttentionInBlocks wide = InBlocks({1, 64, 64, 4, 4, 256});
  AttentionInBlocks latent = InBlocks({1, 64, 64, 4, 4, 192});
  latent.whole.value_dim = 128;
  for (int major : {8, 9, 10, 12}) {
    EXPECT_TRUE(FusedAttentionTakes(wide, kForward, major)) << major;
    EXPECT_EQ(FusedAttentionTakes(wide, kBackward, major), major == 9) << major;
    EXPECT_EQ(FusedAttentionTakes(latent, kBackward, major), major == 9 || major == 10) << major;
  }
}

TEST(FusedAttention, OneCallNeedsNoParts) {
  EXPECT_TRUE(InBlocks(kLayer).IsOneCall());
  EXPECT_EQ(ForwardScratchOf(InBlocks(kLayer)).Bytes() + BackwardScratchOf(InBlocks(kLayer)).Bytes(), 0);
  EXPECT_FALSE(OnRing(1024, 0).IsOneCall()) << "fp32 results";
}

TEST(FusedAttention, PartsAreThoseOfTheLargestBlock) {
  const ForwardScratch hop = ForwardScratchOf(OnRing(1024, 3)), gathered = ForwardScratchOf(OnRing(1024, -1));
  EXPECT_EQ(hop.o, int64_t{2} * 512 * 32 * 128 * 2) << "rank 1 meets rank 2's keys with its second chunk";
  EXPECT_EQ(hop.lse, int64_t{2} * 512 * 32 * 4);
  EXPECT_EQ(hop.sums, 0) << "they are the results";
  EXPECT_EQ(gathered.o, int64_t{2} * 1024 * 32 * 128 * 2);
  EXPECT_EQ(gathered.sums, int64_t{2} * 1024 * 32 * 128 * 4);
  const BackwardScratch grad = BackwardScratchOf(OnRing(1024, -1));
  EXPECT_EQ(grad.dk, int64_t{2} * 2048 * 8 * 128 * 2) << "two later pieces";
  EXPECT_EQ(grad.dk_sums, int64_t{2} * 4096 * 8 * 128 * 4);
  EXPECT_GE(AttentionGradBytes(OnRing(1024, -1)),
            grad.Bytes() + FusedAttentionGradBytes({2, 1024, 1024, 32, 8, 128}, {}));
}

TEST(FusedAttention, SmallerPartsHaveFewerSequencesThenFewerHeads) {
  const AttentionShape x{12, 64, 64, 18, 6, 64};
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const AttentionPart& part : PartsFrom(x, {4, 6})) parts.emplace_back(part.batch, part.kv_heads);
  EXPECT_EQ(parts, (std::vector<std::pair<int64_t, int64_t>>{{4, 6}, {3, 6}, {2, 6}, {1, 6}, {1, 3}, {1, 2}, {1, 1}}));
  EXPECT_EQ(PartsFrom(x, {1, 1}).size(), 1u);
}

TEST(FusedAttention, SaysWhyItIsNot) {
  EXPECT_EQ(WhyNotFused(InBlocks(kLayer), kBackward, 9), "");
  EXPECT_EQ(WhyNotFused(InBlocks(kLayer, Dtype::kF32), kForward, 9), "it is fp32");
  EXPECT_EQ(WhyNotFused(InBlocks({1, 64, 64, 4, 4, 34}), kForward, 9), "heads of 34 elements, no multiple of 8");
  EXPECT_EQ(WhyNotFused(InBlocks({1, 64, 64, 4, 4, 256}), kBackward, 8), "heads of 256 elements, more than 128");
  EXPECT_EQ(WhyNotFused(InBlocks({2, 1, 1, 4, 4, 64}), kBackward, 9), "it has one token");
  EXPECT_EQ(WhyNotFused(InBlocks({2, 1, 1, 4, 4, 64}), kForward, 9), "");
  AttentionInBlocks own = InBlocks(kLayer);
  own.backward = BackwardMethodOf("own");
  EXPECT_EQ(WhyNotFused(own, kBackward, 9), "run.attention_backward = \"own\"");
  EXPECT_EQ(WhyNotFused(own, kForward, 9), "");
  EXPECT_EQ(WhyNotFused(InBlocks(kLayer), kForward, 7), "compute capability 7.x is below 8.0");
}

TEST(FusedAttention, IsCutIntoEqualPartsBelowTheBound) {
  for (const AttentionShape& x : {AttentionShape{1, 64, 64, 4, 4, 64},
                                  kLayer,
                                  {1, 4096, 4096, 32, 8, 128},
                                  {3, 8192, 8192, 32, 8, 128},
                                  {6, 1000, 1000, 12, 12, 64},
                                  {5, 1024, 1024, 16, 16, 64},
                                  {7, 300, 300, 6, 2, 40}}) {
    const AttentionPart part = PartOfBackward(x, {});
    EXPECT_EQ(x.batch % part.batch, 0);
    EXPECT_EQ(x.kv_heads % part.kv_heads, 0);
    EXPECT_TRUE(part.batch == 1 || part.kv_heads == x.kv_heads) << "lse of a part is dense";
    EXPECT_TRUE(ScoreBytes(x, part) <= kScoreBytes || (part.batch == 1 && part.kv_heads == 1));
    EXPECT_GE(FusedAttentionGradBytes(x, {}), ScoreBytes(x, part));
  }
}

TEST(FusedAttention, IsWholeWhereItFits) {
  const AttentionPart part = PartOfBackward({8, 512, 512, 12, 12, 64}, {});
  EXPECT_EQ(part.batch, 8);
  EXPECT_EQ(part.kv_heads, 12);
}

TEST(FusedAttention, LongSequencesAreCutByHeads) {
  const AttentionPart part = PartOfBackward({2, 4096, 4096, 32, 8, 128}, {});
  EXPECT_EQ(part.batch, 1);
  EXPECT_EQ(part.kv_heads, 2);
}

TEST(FusedAttention, MethodsOfBackwardDifferInScoresAndStreams) {
  const AttentionShape x{3, 4096, 4096, 32, 8, 128};
  const auto part = [&](std::string_view name) { return PartOfBackward(x, BackwardMethodOf(name)); };
  EXPECT_EQ(PartsIn(x, part("parts")), 3 * 4) << "two kv heads of one sequence";
  EXPECT_EQ(PartsIn(x, part("large_parts")), 3) << "one sequence";
  EXPECT_EQ(PartsIn(x, part("two_streams")), 3 * 4);
  EXPECT_EQ(PartsIn(x, part("ordered")), 1);
  const auto bytes = [&](std::string_view name) { return FusedAttentionGradBytes(x, BackwardMethodOf(name)); };
  EXPECT_GT(bytes("large_parts"), kLargeScoreBytes);
  EXPECT_GE(bytes("two_streams"), 2 * kScoreBytes);
  EXPECT_EQ(bytes("ordered"), bytes("unordered")) << "neither stores scores";
  EXPECT_FALSE(BackwardMethodOf("unordered").deterministic);
  for (std::string_view name : {"parts", "large_parts", "two_streams"})
    EXPECT_LE(BackwardPartBytes(x, part(name), BackwardMethodOf(name)),
              ShareOfStream(bytes(name), BackwardMethodOf(name).streams))
        << name;
}

TEST(FusedAttention, StoredScoresLeaveNoRoomForSumsOfTheWholeCall) {
  const AttentionShape x{4, 4096, 4096, 32, 8, 128};
  EXPECT_LT(FusedAttentionGradBytes(x, {}), 290'000'000);
  EXPECT_GT(FusedAttentionGradBytes(x, BackwardMethodOf("unordered")), 800'000'000);
}

}  // namespace
}  // namespace espalier
