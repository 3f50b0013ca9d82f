// Caches of sampling: rows that are written, and attention to latents.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, CacheWrite) {
  for (const int64_t width : {1, 17, 64}) {
    for (const int64_t first : {0, 3, 8}) {
      constexpr int64_t kBatch = 2, kRows = 5, kLength = 13;
      const OwnedTensor x = Real({kBatch, kRows, width}), before = Real({kBatch, kLength, width});
      OwnedTensor cache = before, positions(Dtype::kI32, {kRows});
      for (int64_t i = 0; i < kRows; ++i) positions.Set(i, double(first + i));
      const Tensor in[] = {cache.View(), x.View(), positions.View()}, out[] = {cache.View()};
      const Attributes none;
      RunTested("cache_write", {.inputs = in, .outputs = out, .attributes = &none});
      for (int64_t i = 0; i < cache.Count(); ++i) {
        const int64_t batch = i / (kLength * width), row = i / width % kLength - first;
        const bool written = row >= 0 && row < kRows;
        ASSERT_EQ(cache[i], written ? x[(batch * kRows + row) * width + i % width] : before[i])
            << "element " << i << ", rows from " << first;
      }
      EXPECT_TRUE(cache.IsIntact());
    }
  }
}

struct Latents {
  int64_t batch, queries, heads, nope, rope, value, rank, tokens, first, window = 0;

  Attributes Numbers() const {
    Attributes a{{{"nope_dim", double(nope)}, {"value_dim", double(value)}, {"score_factor", 1.5}}, {}};
    if (window > 0) a.numbers["window"] = double(window);
    return a;
  }
};

/// Queries at the positions `first`, first + 1, ...
Case LatentCase(Random& random, Dtype type, const Latents& l) {
  OwnedTensor positions(Dtype::kI32, {l.queries});
  for (int64_t i = 0; i < l.queries; ++i) positions.Set(i, double(l.first + i));
  return {
      "latent_attention",
      {random.Real(type, {l.batch, l.queries, l.heads * (l.nope + l.rope)}),
       random.Real(type, {l.heads * (l.nope + l.value), l.rank}), random.Real(type, {l.batch, l.tokens, l.rank}),
       random.Real(type, {l.batch, l.tokens, l.rope}), positions},
      {OwnedTensor(type, {l.batch, l.queries, l.heads * l.value}), OwnedTensor(kF32, {l.batch, l.heads, l.queries})},
      l.Numbers()};
}

TEST_P(Kernels, LatentAttention) {
  for (const Latents& l : {Latents{1, 1, 1, 1, 2, 1, 1, 1, 0},
                           {2, 1, 3, 7, 2, 5, 11, 17, 16},
                           {1, 1, 4, 16, 8, 24, 33, 300, 200},
                           {2, 5, 2, 5, 6, 3, 70, 150, 140},
                           {1, 3, 2, 16, 8, 16, 32, 200, 190, 1},
                           {1, 3, 2, 8, 2, 9, 20, 200, 6, 140},
                           {1, 2, 2, 8, 2, 9, 20, 300, 170, 131},
                           {1, 1, 2, 128, 64, 128, 512, 65, 64},
                           {0, 1, 2, 4, 2, 4, 8, 5, 0},
                           {1, 0, 2, 4, 2, 4, 8, 5, 0},
                           {1, 1, 0, 4, 2, 4, 8, 5, 0}}) {
    // Products of rank times nope terms; |o| <= rank.
    const double scores = SumBound(l.rank + l.nope + l.rope, double(l.rank * l.nope + l.rope)), size = double(l.rank);
    Check(LatentCase(random_, T(), l),
          size * (3 * scores + SumBound(l.tokens + l.rank, 1)) + (T() == kBf16 ? size / 256 : 0));
  }
}

// The results of the keys and values that training makes of the same latents.
TEST_P(Kernels, LatentAttentionIsAttention) {
  if (T() == kBf16) GTEST_SKIP() << "keys and values are rounded";
  const Latents l{2, 1, 3, 5, 2, 4, 11, 29, 28};
  const Case c = LatentCase(random_, T(), l);
  OwnedTensor kv(T(), {l.batch, l.tokens, l.heads * (l.nope + l.value)});
  for (int64_t row = 0; row < l.batch * l.tokens; ++row)
    for (int64_t n = 0; n < l.heads * (l.nope + l.value); ++n) {
      double sum = 0;
      for (int64_t r = 0; r < l.rank; ++r) sum += c.inputs[2][row * l.rank + r] * c.inputs[1][n * l.rank + r];
      kv.Set(row * l.heads * (l.nope + l.value) + n, sum);
    }
  const double width = double(l.nope + l.rope);
  const Case keys{"latent_keys",
                  {kv, c.inputs[3]},
                  {OwnedTensor(T(), {l.batch, l.tokens, l.heads * (l.nope + l.rope)}),
                   OwnedTensor(T(), {l.batch, l.tokens, l.heads * l.value})},
                  {{{"nope_dim", double(l.nope)}, {"value_dim", double(l.value)}}, {}}};
  const std::vector<OwnedTensor> made = keys.Reference();
  const Case attention{
      "attention",
      {c.inputs[0], made[0], made[1]},
      c.outputs,
      {{{"head_dim", width}, {"value_dim", double(l.value)}, {"causal", 0}, {"score_factor", 1.5}}, {}}};
  CheckAgainst(attention.Reference(), c, 2e-5);
}

}  // namespace
}  // namespace espalier::testing
