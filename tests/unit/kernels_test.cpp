// Every kernel of a backend against its reference on random input of odd sizes, in both element types. Which backend,
// the binary is linked with (tested_kernels.hpp).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "kernel_cases.hpp"
#include "kernels/kernel_list.hpp"

namespace espalier {
namespace {

using namespace testing;

class Kernels : public ::testing::TestWithParam<Dtype> {
 protected:
  Dtype T() const { return GetParam(); }
  OwnedTensor Empty(Dtype dtype, Shape shape, Shape start = {}) { return OwnedTensor(dtype, shape, start); }
  OwnedTensor Real(Shape shape, double low = -1, double high = 1) { return random_.Real(T(), shape, low, high); }
  OwnedTensor F32(Shape shape, double low = -1, double high = 1) { return random_.Real(kF32, shape, low, high); }
  Random random_;
};
INSTANTIATE_TEST_SUITE_P(, Kernels, ::testing::Values(kF32, kBf16),
                         [](const auto& type) { return std::string(Name(type.param)); });

TEST_P(Kernels, Embedding) {
  for (int64_t d : {1, 17, 64}) {
    Case c{"embedding", {random_.Integer({3, 7}, 0, 40), random_.Real(T(), {13, d}, -1, 1, {14, 0})}, {}};
    c.outputs = {Empty(T(), {3, 7, d})};
    Check(c, 0);
    EXPECT_GT(c.Tested()[0].Largest(), 0);
  }
}

TEST_P(Kernels, EmbeddingGrad) {
  for (int64_t d : {1, 17, 65, 127}) {
    for (bool accumulate : {false, true}) {
      Case c{"embedding_grad", {random_.Integer({3, 65}, 0, 20), Real({3, 65, d})}, {}, {}, accumulate};
      c.outputs = {random_.Real(kF32, {9, d}, -1, 1, {5, 0})};
      Check(c, SumBound(195, 1));
    }
  }
}

// Tokens of a row, or of some neighbouring rows of a large table, that are more than a device's lists and rounds of
// loads hold.
TEST_P(Kernels, EmbeddingGradOfFrequentTokens) {
  for (const auto& [rows, d, ids] : {std::tuple{4, 20, 4}, std::tuple{16400, 4, 200}}) {
    for (bool accumulate : {false, true}) {
      Case c{"embedding_grad", {random_.Integer({2, 701}, 0, ids), Real({2, 701, d})}, {}, {}, accumulate};
      c.outputs = {random_.Real(kF32, {rows, d}, -1, 1)};
      Check(c, SumBound(1402, 1));
    }
  }
}

TEST_P(Kernels, RmsNorm) {
  for (int64_t d : {1, 3, 17, 65, 127, 768}) {
    Case c{"rms_norm", {Real({2, 33, d}), Real({d}, 0.5, 2)}, {}, {{{"eps", 1e-5}}, {}}};
    c.outputs = {Empty(T(), {2, 33, d}), Empty(kF32, {2, 33})};
    // With bf16, xhat may round to either neighbour before the weight multiplies it.
    Check(c, SumBound(d, 4));
    const OwnedTensor rstd = c.Reference()[1];
    Case input{"rms_norm_grad", {c.inputs[0], c.inputs[1], rstd, Real({2, 33, d})}, {Empty(T(), {2, 33, d})}};
    Check(input, SumBound(d, rstd.Largest() * rstd.Largest() * 4));
    Case weight{"rms_norm_weight_grad", {c.inputs[0], rstd, input.inputs[3]}, {F32({d})}};
    const double rounding = T() == kBf16 ? 66 * rstd.Largest() / 256 * 0.05 : 0;  // single flips of xhat's rounding
    Check(weight, SumBound(66, rstd.Largest()) + rounding);
    weight.accumulate = true;
    Check(weight, SumBound(66, rstd.Largest()) + rounding);
  }
}

TEST_P(Kernels, LayerNorm) {
  for (int64_t d : {1, 3, 17, 65, 127, 768}) {
    Case c{"layer_norm", {Real({2, 33, d}, -1, 3), Real({d}, 0.5, 2), Real({d})}, {}, {{{"eps", 1e-5}}, {}}};
    c.outputs = {Empty(T(), {2, 33, d}), Empty(kF32, {2, 33}), Empty(kF32, {2, 33})};
    const std::vector<OwnedTensor> results = c.Reference();
    const OwnedTensor &mean = results[1], &rstd = results[2];
    Check(c, SumBound(d, 4 * std::max(1.0, rstd.Largest())));
    Case input{"layer_norm_grad", {c.inputs[0], c.inputs[1], mean, rstd, Real({2, 33, d})}, {Empty(T(), {2, 33, d})}};
    Check(input, SumBound(d, rstd.Largest() * rstd.Largest() * 8));
    for (bool accumulate : {false, true}) {
      Check(
          {"layer_norm_weight_grad", {c.inputs[0], mean, rstd, input.inputs[4]}, {F32({d}), F32({d})}, {}, accumulate},
          SumBound(66, 2 * rstd.Largest()));
    }
  }
}

/// An op with an addend, and the same by an addition of its own.
struct WithAddend {
  Case forward, gradient;
  size_t addend;
};

/// A norm of rows of `d`, and its gradient from the statistics of forward.
WithAddend NormWithAddend(Random& random, Dtype type, const std::string& kind, int64_t d) {
  const OwnedTensor x = random.Real(type, {2, 33, d}, -1, 3), y(type, {2, 33, d}), row(kF32, {2, 33});
  WithAddend norm{
      {kind, {x, random.Real(type, {d}, 0.5, 2)}, {y, row}, {{{"eps", 1e-5}}, {}}}, {kind + "_grad", {}, {y}}, 2};
  if (kind == "layer_norm") {
    norm.forward.inputs.push_back(random.Real(type, {d}));
    norm.forward.outputs.push_back(row);
    norm.addend = 3;
  }
  norm.forward.inputs.push_back(random.Real(type, {2, 33, d}));
  norm.forward.outputs.push_back(y);
  const std::vector<OwnedTensor> results = norm.forward.Reference();
  norm.gradient.inputs = {results.back(), norm.forward.inputs[1]};
  norm.gradient.inputs.insert(norm.gradient.inputs.end(), results.begin() + 1, results.end() - 1);
  norm.gradient.inputs.insert(norm.gradient.inputs.end(),
                              {random.Real(type, {2, 33, d}), random.Real(type, {2, 33, d})});
  return norm;
}

OwnedTensor Added(const OwnedTensor& a, const OwnedTensor& b) {
  return Case{"add", {a, b}, {OwnedTensor(a.dtype(), a.shape())}}.Tested()[0];
}

// A sum that joins a norm, or the gradient of one, is as one by an op of its own, to the bit.
TEST_P(Kernels, NormsWithAddend) {
  for (const char* kind : {"rms_norm", "layer_norm"}) {
    for (int64_t d : {1, 3, 17, 65, 127, 768}) {
      const auto [forward, gradient, addend] = NormWithAddend(random_, T(), kind, d);
      Case plain = forward;
      plain.inputs[0] = Added(forward.inputs[0], forward.inputs[addend]);
      plain.inputs.pop_back();
      plain.outputs.pop_back();
      std::vector<OwnedTensor> parts = plain.Tested();
      parts.push_back(plain.inputs[0]);
      const std::vector<OwnedTensor> fused = forward.Tested();
      for (size_t o = 0; o < parts.size(); ++o)
        EXPECT_TRUE(fused[o].SameBits(parts[o])) << kind << " of " << d << ", output " << o;
      Check(forward, SumBound(d, 4 * std::max(1.0, parts[addend - 1].Largest())));
      for (size_t input : {size_t{0}, addend}) CheckInPlace(forward, addend, input);

      Case alone = gradient;
      alone.inputs.pop_back();
      const OwnedTensor dx = alone.Tested()[0];
      EXPECT_TRUE(gradient.Tested()[0].SameBits(Added(dx, gradient.inputs.back()))) << kind << "_grad of " << d;
      const double rstd = parts[addend - 1].Largest();
      Check(gradient, SumBound(d, rstd * rstd * 8) + 2 * UnitOf(T()) * dx.Largest());
      CheckInPlace(gradient, 0, gradient.inputs.size() - 1);
    }
  }
}

TEST_P(Kernels, PositionEmbedding) {
  for (int64_t d : {1, 17, 65, 127}) {
    OwnedTensor positions(Dtype::kI32, {11});  // not in order, not from 0: a piece of a reordered sequence
    for (int64_t s = 0; s < 11; ++s) positions.Set(s, static_cast<double>((s * 5 + 3) % 13));
    const Case c{"position_embedding", {Real({3, 11, d}), positions, Real({13, d})}, {Empty(T(), {3, 11, d})}};
    Check(c, SumBound(2, 1));
    CheckInPlace(c, 0, 0);
    for (bool accumulate : {false, true}) {
      for (int64_t batch : {3, 19})
        Check({"position_embedding_grad", {positions, Real({batch, 11, d})}, {F32({13, d})}, {}, accumulate},
              SumBound(batch + 1, 1));
    }
  }
}

TEST_P(Kernels, PositionsBeyondTheTableAreRefused) {
  if (RefusesOnTheDevice()) GTEST_SKIP() << "the device would be of no further use";
  const Case c{
      "position_embedding", {Real({1, 2, 3}), random_.Integer({2}, 4, 4), Real({4, 3})}, {Empty(T(), {1, 2, 3})}};
  EXPECT_THROW(c.Tested(), InvariantError);
  EXPECT_THROW(c.Reference(), InvariantError);
}

TEST_P(Kernels, Bias) {
  for (int64_t n : {1, 17, 65, 127, 3072}) {
    const Case c{"add_bias", {Real({2, 33, n}), Real({n})}, {Empty(T(), {2, 33, n})}};
    Check(c, SumBound(2, 1));
    CheckInPlace(c, 0, 0);
    for (bool accumulate : {false, true})
      Check({"bias_grad", {c.inputs[0]}, {F32({n})}, {}, accumulate}, SumBound(66, 1));
  }
}

TEST_P(Kernels, MatmulWithBias) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  // Empty; small; wider than a widened block of columns; deeper than a slice of the contracted dim.
  for (const Sizes s : {Sizes{1, 1, 1},
                        {3, 17, 0},
                        {0, 3, 4},
                        {3, 0, 4},
                        {3, 17, 65},
                        {127, 65, 17},
                        {129, 200, 131},
                        {5, 4200, 9},
                        {3, 5, 20000}}) {
    const OwnedTensor x = Real({1, s.rows, s.k}), bias = Real({s.n}, -3, 3);
    Check({"matmul", {x, Real({s.k, s.n}), bias}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,kn->bsn")},
          SumBound(s.k, 1), false);
    Check({"matmul", {x, Real({s.n, s.k}), bias}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,nk->bsn")},
          SumBound(s.k, 1), false);
  }
}

TEST_P(Kernels, Matmul) {
  for (const Sizes s : {Sizes{1, 1, 1},
                        {3, 17, 0},
                        {0, 3, 4},
                        {3, 0, 4},
                        {3, 17, 65},
                        {127, 65, 17},
                        {65, 3, 127},
                        {34, 1, 33},
                        {129, 200, 131}}) {
    const OwnedTensor x = Real({1, s.rows, s.k}), w = Real({s.n, s.k}), dy = Real({1, s.rows, s.n});
    const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
    Check({"matmul", {x, w}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,nk->bsn")}, SumBound(s.k, 1), false);
    Check({"matmul", {dy, w}, {Empty(T(), {1, s.rows, s.k})}, spec("bsn,nk->bsk")}, SumBound(s.n, 1), false);
    for (bool accumulate : {false, true}) {
      Check({"matmul", {dy, x}, {F32({s.n, s.k})}, spec("bsn,bsk->nk"), accumulate}, SumBound(s.rows + 1, 1), false);
      Check({"matmul", {x, dy}, {F32({s.k, s.n})}, spec("bsk,bsn->kn"), accumulate}, SumBound(s.rows + 1, 1), false);
    }
    const OwnedTensor stored_in_out = Real({s.k, s.n});
    Check({"matmul", {x, stored_in_out}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,kn->bsn")}, SumBound(s.k, 1), false);
    Check({"matmul", {dy, stored_in_out}, {Empty(T(), {1, s.rows, s.k})}, spec("bsn,kn->bsk")}, SumBound(s.n, 1),
          false);
  }
}

// Contracted dims beyond 16384 are summed in slices.
TEST_P(Kernels, DeepMatmul) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const int64_t deep = 20011;
  Check({"matmul", {Real({1, 3, deep}), Real({deep, 5})}, {Empty(T(), {1, 3, 5})}, spec("bsn,nk->bsk")},
        SumBound(deep, 1), false);
  for (bool accumulate : {false, true}) {
    Check({"matmul", {Real({1, deep, 3}), Real({1, deep, 5})}, {F32({3, 5})}, spec("bsn,bsk->nk"), accumulate},
          SumBound(deep, 1), false);
  }
}

TEST_P(Kernels, MatmulGivesTheSameBitsTwice) {
  Case c{"matmul", {Real({2, 65, 127}), Real({33, 127})}, {Empty(T(), {2, 65, 33})}, {{}, {{"spec", "bsk,nk->bsn"}}}};
  EXPECT_TRUE(c.Tested()[0].SameBits(c.Tested()[0]));
}

TEST_P(Kernels, Rope) {
  for (int64_t e : {2, 6, 34, 64}) {
    Random random(3);
    Case table{
        "rope_table", {random.Integer({17}, 0, 5000)}, {Empty(kF32, {17, e})}, {{{"theta", 5e5}, {"head_dim", e}}, {}}};
    Check(table, 0);
    for (int inverse : {0, 1}) {
      Case c{"rope", {Real({3, 17, 3 * e}), table.Reference()[0]}, {Empty(T(), {3, 17, 3 * e})}};
      c.attributes.numbers = {{"head_dim", e}, {"inverse", inverse}};
      Check(c, SumBound(2, 1));
      CheckInPlace(c, 0, 0);
    }
  }
}

TEST(KernelsRope, InverseUndoesRotation) {
  Random random;
  const OwnedTensor x = random.Real(kF32, {2, 5, 12});
  Case table{
      "rope_table", {random.Integer({5}, 0, 99)}, {OwnedTensor(kF32, {5, 6})}, {{{"theta", 1e4}, {"head_dim", 6}}, {}}};
  Case forward{
      "rope", {x, table.Tested()[0]}, {OwnedTensor(kF32, {2, 5, 12})}, {{{"head_dim", 6}, {"inverse", 0}}, {}}};
  Case back{"rope", {forward.Tested()[0], table.Tested()[0]}, forward.outputs, {{{"head_dim", 6}, {"inverse", 1}}, {}}};
  ExpectNear(back.Tested()[0], x, SumBound(4, 1), "rope there and back");
}

const Heads kHeads[] = {
    {1, 1, 1, 1, 1, 2},
    {2, 17, 17, 3, 3, 6},
    {1, 65, 65, 4, 2, 16},
    {2, 127, 127, 6, 2, 34},
    {1, 200, 200, 2, 1, 64},
    {1, 130, 130, 8, 8, 128},
    {1, 70, 70, 2, 1, 200},
    {1, 65, 65, 2, 2, 256},
    {1, 70, 70, 3, 3, 7},  // odd heads
    {2, 33, 65, 4, 4, 1, 32, 0},
    {1, 66, 66, 2, 2, 65},
    {1, 66, 132, 2, 2, 33, 66, 0, 1, 2, 132},
    {0, 5, 5, 2, 1, 16},  // nothing to do, no queries, no keys
    {1, 0, 5, 2, 1, 16},
    {1, 5, 0, 2, 1, 16, 0, 0, 0},
    {1, 63, 130, 2, 2, 10, 67, 0},    // queries are the last of the keys
    {1, 70, 133, 2, 1, 8, 40, 0},     // keys beyond the last query
    {2, 33, 65, 2, 2, 16, 10, 31},    // the first queries see nothing
    {1, 20, 30, 2, 2, 16, 0, 100},    // nobody sees anything
    {1, 65, 129, 3, 1, 16, 0, 0, 0},  // not causal
    // Zigzag order: the queries of one rank, or of all.
    {1, 66, 132, 2, 1, 16, 0, 0, 1, 2, 132},
    {2, 66, 132, 4, 2, 6, 66, 0, 1, 2, 132},
    {1, 22, 66, 2, 2, 10, 22, 0, 1, 3, 66},
    {1, 264, 264, 2, 1, 16, 0, 0, 1, 4, 264},
    {1, 6, 12, 3, 3, 34, 6, 0, 0, 2, 12},
    // Blocks of a ring: one's own, an earlier rank's, a later one's; chunks that fill blocks of the kernel and that do
    // not.
    {1, 140, 140, 2, 1, 16, 0, 0, 1, 2, 280, 0},
    {1, 140, 140, 2, 2, 16, 140, 140, 1, 2, 280, 0},
    {2, 66, 66, 2, 1, 10, 66, 66, 1, 3, 198, 1},
    {1, 66, 66, 2, 1, 34, 66, 66, 1, 3, 198, 2},
    {1, 256, 256, 1, 1, 16, 0, 0, 1, 2, 512, 1},
    {1, 2, 2, 1, 1, 2, 4, 4, 1, 4, 8, 3},
};

TEST_P(Kernels, Attention) {
  for (const Heads& h : kHeads) {
    const Case c = AttentionCase(random_, T(), h);
    // |v| <= 1 bounds o. Scores are sums of head_dim products up to 4; bf16 rounds probabilities.
    const double scores = SumBound(h.head_dim, 4 / std::sqrt(double(h.head_dim)));
    Check(c, 4 * scores + SumBound(h.keys, 1) + (T() == kBf16 ? 1.0 / 256 : 0));
  }
}

TEST_P(Kernels, AttentionGrad) {
  for (const Heads& h : kHeads) {
    const Case c = AttentionGradCase(random_, AttentionCase(random_, T(), h));
    double largest = 1;
    for (const OwnedTensor& x : c.Reference()) largest = std::max(largest, x.Largest());
    const double relative = SumBound(h.head_dim + h.queries * h.heads / std::max<int64_t>(h.kv_heads, 1), 8) +
                            (T() == kBf16 ? 1.0 / 64 : 0);
    Check(c, largest * relative);
  }
}

/// Parts of one softmax, the first rows of the one or the other, or of both, without keys.
Case MergeCase(Random& random, Dtype type, const Heads& h) {
  const Shape rows = {h.batch, h.queries, h.heads * h.head_dim}, sums = {h.batch, h.heads, h.queries};
  Case c{"attention_merge",
         {random.Real(kF32, rows), random.Real(kF32, sums, -9, 9), random.Real(kF32, rows),
          random.Real(kF32, sums, -9, 9)},
         {OwnedTensor(type, rows), OwnedTensor(kF32, sums)}};
  for (int64_t i = 0; i < std::min<int64_t>(2, h.queries); ++i) c.inputs[1].Set(i, -kInfinity);
  for (int64_t i = 1; i < std::min<int64_t>(3, h.queries); ++i) c.inputs[3].Set(i, -kInfinity);
  return c;
}

TEST_P(Kernels, AttentionMerge) {
  for (const Heads& h : kHeads) {
    const Case c = MergeCase(random_, T(), h);
    Check(c, SumBound(2, 9));
    if (T() == kF32) CheckInPlace(c, 0, 0);
  }
}

/// bf16 rounds by at most so much, relative: probabilities before their product with values and, where a library finds
/// results block by block, each block's, before they are joined in fp32.
constexpr double kBf16Rounding = 1.0 / 256;

TEST(KernelsAttention, InZigzagOrder) {
  Random random;
  for (const Heads& h : ZigzagHeads()) {
    const Case c = AttentionCase(random, kBf16, h);
    const std::vector<OwnedTensor> tested = c.Tested(), reference = c.Reference();
    const std::string what = fmt::format("cp {}, queries {}, keys {}, hop {}", h.cp, h.query_start, h.keys, h.hop);
    const double scores = SumBound(h.head_dim, 4 / std::sqrt(double(h.head_dim))), sums = SumBound(h.keys, 1);
    // Probabilities and the weights of parts are 1 together, and |v| <= 1.
    ExpectNear(tested[0], reference[0], 2 * kBf16Rounding + 4 * scores + sums, "o, " + what);
    ExpectNear(tested[1], reference[1], 4 * scores + sums, "lse, " + what);
    EXPECT_TRUE(c.Tested()[0].SameBits(tested[0])) << what;
    const Case grad = AttentionGradCase(random, c);
    const std::vector<OwnedTensor> gradients = grad.Tested(), expected = grad.Reference(), again = grad.Tested();
    for (size_t i = 0; i < 3; ++i) {
      // A row has at most a part of each rank's keys or queries, each about as large as the largest sum.
      const double parts = h.hop < 0 ? double(h.cp) : 1.0;
      ExpectNear(gradients[i], expected[i],
                 expected[i].Largest() * ((4 + parts) * kBf16Rounding + SumBound(h.keys * h.heads, 8)),
                 fmt::format("gradient {}, {}", i, what));
      EXPECT_TRUE(again[i].SameBits(gradients[i])) << what;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

/// A sequence on `cp` ranks of a ring, each merging its blocks hop by hop, and adding up what it finds of gradients.
class KernelsRing : public ::testing::TestWithParam<Dtype> {};

TEST_P(KernelsRing, IsTheWhole) {
  const Dtype type = GetParam();
  const int64_t kPart = type == kF32 ? 44 : 256;
  constexpr int64_t kCp = 3, kWidth = 2 * 16;
  Random random;
  const Heads whole{1, kCp * kPart, kCp * kPart, 2, 1, 16, 0, 0, 1, kCp, kCp * kPart};
  const Case forward = AttentionCase(random, type, whole), backward = AttentionGradCase(random, forward);
  const std::vector<OwnedTensor> expected = forward.Reference(), gradients = backward.Reference();
  const double rounding = type == kBf16 ? kBf16Rounding : 0;
  const auto bound = [&](const OwnedTensor& x) { return 1e-4 + (4 + kCp) * rounding * x.Largest(); };
  // Keys of another rank lie where a rank's own lay.
  const auto part = [&](const OwnedTensor& x, int64_t of, int64_t rank) {
    OwnedTensor y(x.dtype(), {1, kPart, x.shape()[2]}, {0, rank * kPart, 0});
    for (int64_t i = 0; i < y.Count(); ++i) y.Set(i, x[of * y.Count() + i]);
    return y;
  };
  const auto lse_part = [&](int64_t rank) {
    OwnedTensor y(kF32, {1, 2, kPart});
    for (int64_t i = 0; i < y.Count(); ++i) y.Set(i, expected[1][i / kPart * kCp * kPart + rank * kPart + i % kPart]);
    return y;
  };
  std::vector<OwnedTensor> dk(kCp, OwnedTensor(kF32, {1, kPart, 16})), dv = dk;
  const auto add = [](OwnedTensor& sum, const OwnedTensor& x) {
    for (int64_t i = 0; i < x.Count(); ++i) sum.Set(i, sum[i] + x[i]);
  };
  for (int64_t rank = 0; rank < kCp; ++rank) {
    std::vector<OwnedTensor> merged;
    OwnedTensor dq(kF32, {1, kPart, kWidth});
    for (int64_t hop = 0; hop < kCp; ++hop) {
      const int64_t from = (rank + kCp - hop) % kCp;
      const OwnedTensor k = part(forward.inputs[1], from, rank), v = part(forward.inputs[2], from, rank);
      Case block{"attention",
                 {part(forward.inputs[0], rank, rank), k, v},
                 {OwnedTensor(kF32, {1, kPart, kWidth}), lse_part(rank)},
                 forward.attributes};
      block.attributes.numbers["hop"] = double(hop);
      const std::vector<OwnedTensor> found = block.Tested();
      merged = hop == 0 ? found
                        : Case{"attention_merge", {merged[0], merged[1], found[0], found[1]}, block.outputs}.Tested();
      Case grad{"attention_grad", block.inputs, {dq, dk[from], dv[from]}, block.attributes};
      grad.inputs.insert(grad.inputs.end(),
                         {part(backward.inputs[3], rank, rank), lse_part(rank), part(backward.inputs[5], rank, rank)});
      const std::vector<OwnedTensor> parts = grad.Tested();
      add(dq, parts[0]);
      add(dk[from], parts[1]);
      add(dv[from], parts[2]);
    }
    ExpectNear(merged[0], part(expected[0], rank, rank), 1e-5 + 2 * rounding, "o");
    ExpectNear(merged[1], lse_part(rank), 1e-5, "lse");
    ExpectNear(dq, part(gradients[0], rank, rank), bound(gradients[0]), "dq");
  }
  for (int64_t rank = 0; rank < kCp; ++rank) {
    ExpectNear(dk[rank], part(gradients[1], rank, rank), bound(gradients[1]), "dk");
    ExpectNear(dv[rank], part(gradients[2], rank, rank), bound(gradients[2]), "dv");
  }
}

INSTANTIATE_TEST_SUITE_P(, KernelsRing, ::testing::Values(kF32, kBf16),
                         [](const auto& type) { return std::string(Name(type.param)); });

TEST(KernelsAttention, LogSumExpIsExactWhateverTheTypeOfTheProducts) {
  Random random;
  const Case c = AttentionCase(random, kBf16, {1, 100, 100, 2, 2, 32});
  ExpectNear(c.Tested()[1], c.Reference()[1], SumBound(132, 2), "lse");
}

TEST(KernelsAttention, NotANumberIsSeen) {
  Random random;
  Case c = AttentionCase(random, kF32, {1, 80, 80, 1, 1, 16});
  c.inputs[1].Set(70 * 16, std::nan(""));
  const OwnedTensor o = c.Tested()[0];
  EXPECT_TRUE(std::isfinite(o[69 * 16]));
  for (int64_t i = 70; i < 80; ++i) EXPECT_TRUE(std::isnan(o[i * 16])) << i;
}

TEST_P(Kernels, Add) {
  for (const Shape& shape : {Shape{}, {3, 17}, {1, 2, 127}, {40000}}) {
    for (size_t count : {2, 3, 5}) {
      Case c{"add", {}, {Empty(T(), shape)}};
      for (size_t i = 0; i < count; ++i) c.inputs.push_back(Real(shape));
      Check(c, SumBound(5, 1));
      CheckInPlace(c, 0, 0);
    }
  }
}

TEST_P(Kernels, Swiglu) {
  for (int64_t n : {1, 17, 65, 40003}) {
    const Case c{"swiglu", {Real({1, n}, -9, 9), Real({1, n})}, {Empty(T(), {1, n})}};
    Check(c, SumBound(8, 9));
    CheckInPlace(c, 0, 0);
    const Case grad{"swiglu_grad", {c.inputs[0], c.inputs[1], Real({1, n})}, {Empty(T(), {1, n}), Empty(T(), {1, n})}};
    Check(grad, SumBound(8, 9));
    for (size_t input : {0, 1, 2}) CheckInPlace(grad, 0, input);
    CheckInPlace(grad, 1, 2);
  }
}

TEST_P(Kernels, SwigluOfExtremeGates) {
  Case c{"swiglu", {Empty(T(), {4}), Real({4}, 1, 1)}, {Empty(T(), {4})}};
  const double gates[] = {-1e30, -100, 100, 1e30};
  for (int i = 0; i < 4; ++i) c.inputs[0].Set(i, gates[i]);
  Check(c, 1e-37);
}

TEST_P(Kernels, Gelu) {
  for (int64_t n : {1, 17, 65, 40003}) {
    const Case c{"gelu", {Real({1, n}, -9, 9)}, {Empty(T(), {1, n})}};
    Check(c, SumBound(8, 9));
    CheckInPlace(c, 0, 0);
    const Case grad{"gelu_grad", {c.inputs[0], Real({1, n})}, {Empty(T(), {1, n})}};
    Check(grad, SumBound(8, 9));
    for (size_t input : {0, 1}) CheckInPlace(grad, 0, input);
  }
}

TEST_P(Kernels, GeluOfExtremes) {
  Case c{"gelu", {Empty(T(), {6})}, {Empty(T(), {6})}};
  const double extremes[] = {-1e30, -100, 0, 100, 1e30, std::nan("")};
  for (int i = 0; i < 6; ++i) c.inputs[0].Set(i, extremes[i]);
  const Case grad{"gelu_grad", {c.inputs[0], Real({6}, 1, 1)}, c.outputs};
  const OwnedTensor y = c.Tested()[0], dx = grad.Tested()[0];
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(y[i], extremes[i] > 0 ? c.inputs[0][i] : 0) << extremes[i];
    EXPECT_EQ(dx[i], extremes[i] > 0 ? 1 : extremes[i] < 0 ? 0 : 0.5) << extremes[i];
  }
  EXPECT_TRUE(std::isnan(y[5]) && std::isnan(dx[5]));
}

Case LogitsCase(Random& random, Dtype type, int64_t width, const char* op) {
  Case c{op, {random.Real(type, {2, 9, width}, -8, 8, {0, 0, 5})}, {}};
  Case largest{"logits_max", c.inputs, {OwnedTensor(kF32, {2, 9})}};
  c.inputs.push_back(largest.Reference()[0]);
  c.inputs.push_back(random.Integer({2, 9}, -1, static_cast<int>(width) + 9));
  c.outputs = {OwnedTensor(kF32, {2, 9}), OwnedTensor(kF32, {2, 9})};
  return c;
}

TEST_P(Kernels, CrossEntropy) {
  for (int64_t width : {1, 17, 65, 127, 5003}) {
    const Case sum = LogitsCase(random_, T(), width, "logits_sum");
    Check({"logits_max", {sum.inputs[0]}, {Empty(kF32, {2, 9})}}, 0);
    Check(sum, SumBound(64, 1) * sum.Reference()[0].Largest());
    const std::vector<OwnedTensor> sums = sum.Reference();
    const Case grad{
        "cross_entropy_grad", {sum.inputs[0], sum.inputs[1], sums[0], sum.inputs[2]}, {Empty(T(), {2, 9, width})}};
    Check(grad, SumBound(4, 1));
    CheckInPlace(grad, 0, 0);
    for (bool accumulate : {false, true}) {
      Check({"token_loss", {sum.inputs[1], sums[0], sums[1], sum.inputs[2]}, {F32({}), F32({})}, {}, accumulate},
            SumBound(0, 200));
    }
  }
}

TEST(KernelsCrossEntropy, ShardsOfTheVocabularyAddUp) {
  Random random;
  const OwnedTensor logits = random.Real(kF32, {1, 5, 20});
  OwnedTensor targets(Dtype::kI32, {1, 5});
  const int ids[] = {0, 6, 7, 19, -1};
  for (int i = 0; i < 5; ++i) targets.Set(i, ids[i]);
  const OwnedTensor largest = Case{"logits_max", {logits}, {OwnedTensor(kF32, {1, 5})}}.Tested()[0];
  const Case whole{"logits_sum", {logits, largest, targets}, {OwnedTensor(kF32, {1, 5}), OwnedTensor(kF32, {1, 5})}};
  std::vector<double> sum(5), target(5);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 7}, {7, 13}, {20, 0}}) {
    Case cut{"slice", {logits}, {OwnedTensor(kF32, {1, 5, count}, {0, 0, first})}};
    Case part = whole;
    part.inputs[0] = cut.Tested()[0];
    const std::vector<OwnedTensor> parts = part.Tested();
    for (int i = 0; i < 5; ++i) sum[i] += parts[0][i], target[i] += parts[1][i];
  }
  const std::vector<OwnedTensor> expected = whole.Tested();
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(sum[i], expected[0][i], 1e-5);
    EXPECT_EQ(target[i], expected[1][i]);
  }
  EXPECT_EQ(expected[1][3], logits[3 * 20 + 19]);
}

TEST_P(Kernels, Cast) {
  for (Dtype to : {kF32, kBf16}) Check({"cast", {Real({3, 127}, -9, 9)}, {Empty(to, {3, 127})}}, 0);
}

TEST(KernelsCast, RoundsToNearestEvenAndKeepsWhatIsNotANumber) {
  OwnedTensor x(kF32, {6});
  const float values[] = {1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, kInfinity, std::nanf("")};
  for (int i = 0; i < 6; ++i) x.Set(i, values[i]);
  const OwnedTensor y = Case{"cast", {x}, {OwnedTensor(kBf16, {6})}}.Tested()[0];
  EXPECT_EQ(y[0], 1.0);
  EXPECT_EQ(y[1], 1.015625);
  EXPECT_EQ(y[2], -1.0);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_EQ(y[4], kInfinity);
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST(KernelsOptimizer, Accumulate) {
  Random random;
  for (const Shape& shape : {Shape{}, {3, 17}, {40000}})
    for (bool accumulate : {false, true})
      Check({"accumulate", {random.Real(kF32, shape)}, {random.Real(kF32, shape)}, {}, accumulate}, SumBound(2, 1));
}

TEST(KernelsOptimizer, SumSquares) {
  Random random;
  for (int64_t n : {1, 17, 65537, 200001}) {
    Check({"sum_squares", {random.Real(kF32, {n})}, {OwnedTensor(kF32, {})}}, 0);
  }
}

TEST(KernelsOptimizer, Clip) {
  const auto scalar = [](double x) {
    OwnedTensor t(kF32, {});
    t.Set(0, x);
    return t;
  };
  for (double clip_norm : {0.0, 0.5, 1e6}) {
    for (double loss : {100.0, double(kInfinity), std::nan("")}) {
      Case c{
          "clip", {scalar(loss), scalar(33), scalar(2), scalar(700), scalar(3)}, {}, {{{"clip_norm", clip_norm}}, {}}};
      c.outputs.assign(5, OwnedTensor(kF32, {}));
      const std::vector<OwnedTensor> r = c.Tested();
      EXPECT_EQ(r[4][0], -1);
      EXPECT_FLOAT_EQ(r[1][0], std::sqrt(705.0) / 33);
      EXPECT_FLOAT_EQ(r[2][0], (clip_norm == 0.5 ? 0.5 / (std::sqrt(705.0) / 33 + 1e-6) : 1) / 33);
      EXPECT_EQ(r[3][0], std::isfinite(loss) ? 1 : 0);
      if (std::isfinite(loss)) Check(c, 0);
    }
  }
}

TEST(KernelsOptimizer, ClipSaysWhoseSquaresAreFirstNotFinite) {
  const std::vector<double> squares = {2, kInfinity, 3, std::nan("")};
  Case c{"clip", {}, {}, {{{"clip_norm", 1.0}}, {}}};
  for (double x : {100.0, 33.0, squares[0], squares[1], squares[2], squares[3]}) {
    c.inputs.emplace_back(kF32, Shape{});
    c.inputs.back().Set(0, x);
  }
  c.outputs.assign(5, OwnedTensor(kF32, {}));
  for (const std::vector<OwnedTensor>& r : {c.Tested(), c.Reference()}) {
    EXPECT_EQ(r[3][0], 0);
    EXPECT_EQ(r[4][0], 1);
  }
}

// More tensors than one launch takes.
TEST(KernelsOptimizer, ClipOfManyTensors) {
  Random random;
  for (int first : {-1, 0, 255, 256, 699}) {
    Case c{"clip",
           {random.Real(kF32, {}, 3, 4), random.Real(kF32, {}, 7, 7)},
           std::vector(5, OwnedTensor(kF32, {})),
           {{{"clip_norm", 1.0}}, {}}};
    for (int i = 0; i < 700; ++i) c.inputs.push_back(random.Real(kF32, {}, 0, 1));
    if (first >= 0) c.inputs[static_cast<size_t>(2 + first)].Set(0, kInfinity);
    if (first >= 0) c.inputs.back().Set(0, std::nan(""));
    const std::vector<OwnedTensor> r = c.Tested();
    EXPECT_EQ(r[4][0], first);
    EXPECT_EQ(r[3][0], first < 0 ? 1 : 0);
    EXPECT_FLOAT_EQ(r[2][0], c.Reference()[2][0]);
    if (first < 0) Check(c, 0);
  }
}

/// Tensors of so many elements; the first `decaying` decay.
Case AdamwCase(const std::vector<int64_t>& tensors, int decaying, double apply = 1) {
  Random random;
  Case c{"adamw", {}, {}};
  for (double x : {3e-2, 7.0, 0.25, apply}) c.inputs.push_back(random.Real(kF32, {}, x, x));
  for (int64_t n : tensors) {
    const std::vector<OwnedTensor> state = {random.Real(kF32, {n}), random.Real(kF32, {n}),
                                            random.Real(kF32, {n}, 0, 1)};
    c.inputs.insert(c.inputs.end(), state.begin(), state.end());
    c.inputs.push_back(random.Real(kF32, {n}));
    c.outputs.insert(c.outputs.end(), state.begin(), state.end());
  }
  c.attributes.numbers = {
      {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decaying", decaying}};
  return c;
}

/// The same update of the t-th tensor alone.
Case AdamwOfOne(const Case& c, size_t t) {
  Case one = c;
  one.inputs.assign(c.inputs.begin(), c.inputs.begin() + 4);
  one.inputs.insert(one.inputs.end(), c.inputs.begin() + 4 + 4 * static_cast<long>(t),
                    c.inputs.begin() + 8 + 4 * static_cast<long>(t));
  one.outputs.assign(c.outputs.begin() + 3 * static_cast<long>(t), c.outputs.begin() + 3 + 3 * static_cast<long>(t));
  one.attributes.numbers["decaying"] = static_cast<double>(t) < c.attributes.Number("decaying") ? 1 : 0;
  return one;
}

TEST(KernelsOptimizer, Adamw) {
  for (int64_t n : {1, 17, 127, 40001}) {
    for (int decaying : {0, 1}) {
      const Case c = AdamwCase({n}, decaying);
      Check(c, SumBound(8, 1));
      for (size_t i = 0; i < 3; ++i) CheckInPlace(c, i, 4 + i);
    }
  }
}

// Cut among threads and blocks wherever it may be, an element's bits are those of its tensor alone.
TEST(KernelsOptimizer, AdamwOfManyTensors) {
  const std::vector<int64_t> tensors = {1, 4097, 0, 17, 40001, 3, 4096, 16385, 127};
  for (int decaying : {0, 4, 9}) {
    Case c = AdamwCase(tensors, decaying);
    c.inputs[4] = c.inputs[4].Shifted(1);  // tensors that do not lie at packs of 16 bytes
    c.inputs[4 + 4 * 4 + 3] = c.inputs[4 + 4 * 4 + 3].Shifted(1);
    c.outputs[3 * 7 + 1] = c.outputs[3 * 7 + 1].Shifted(2);
    Check(c, SumBound(8, 1));
    const std::vector<OwnedTensor> together = c.Tested();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const std::vector<OwnedTensor> alone = AdamwOfOne(c, t).Tested();
      for (size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(together[3 * t + i].SameBits(alone[i])) << "tensor " << t << " output " << i;
    }
  }
}

// More tensors than one launch takes.
TEST(KernelsOptimizer, AdamwOfHundredsOfTensors) {
  std::vector<int64_t> tensors;
  for (int64_t t = 0; t < 1500; ++t) tensors.push_back(t % 30 == 0 ? t % 7 : 0);  // most of them empty pieces
  for (int decaying : {700, 1400}) Check(AdamwCase(tensors, decaying), SumBound(8, 1));
}

TEST(KernelsOptimizer, AdamwWritesNothingUnlessItApplies) {
  const Case c = AdamwCase({65, 5000}, 1, 0);
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()}) {
    for (size_t o = 0; o < results.size(); ++o) EXPECT_TRUE(results[o].SameBits(c.outputs[o]));
  }
}

TEST_P(Kernels, Slice) {
  const OwnedTensor x = random_.Real(T(), {5, 7, 11}, -1, 1, {10, 0, 20});
  Case c{"slice", {x}, {Empty(T(), {3, 2, 4}, {11, 5, 26})}};
  Check(c, 0);
  EXPECT_EQ(c.Tested()[0][0], x[(1 * 7 + 5) * 11 + 6]);
  EXPECT_EQ(c.Tested()[0][3 * 2 * 4 - 1], x[(3 * 7 + 6) * 11 + 9]);
  c.outputs = {Empty(T(), {3, 2, 4}, {13, 5, 26})};
  EXPECT_THROW(c.Tested(), InvariantError);
}

// Whole inner dims are one long row, which many of a device's blocks share; many rows leave them none to share.
TEST_P(Kernels, SliceOfLongRows) {
  for (int64_t d : {1000, 1001}) {
    const OwnedTensor x = Real({2, 5, d});
    for (const Shape& shape : {Shape{1, 5, d}, Shape{2, 3, d}})
      Check({"slice", {x}, {OwnedTensor(T(), shape, {2 - shape[0], 5 - shape[1], 0})}}, 0);
  }
  const OwnedTensor x = Real({300, 70, 9});
  Check({"slice", {x}, {OwnedTensor(T(), {290, 70, 8}, {7, 0, 1})}}, 0);
}

TEST_P(Kernels, Pad) {
  const OwnedTensor x = random_.Real(T(), {3, 2, 4}, -1, 1, {11, 5, 26});
  Case c{"pad", {x}, {Empty(T(), {5, 7, 11}, {10, 0, 20})}};
  Check(c, 0);
  const OwnedTensor sum = c.Tested()[0];
  c.attributes.numbers["max"] = 1;
  const OwnedTensor maximum = c.Tested()[0];
  EXPECT_TRUE(maximum.SameBits(c.Reference()[0]));
  for (int64_t i = 0; i < 5 * 7 * 11; ++i) {
    const int64_t a = i / 77 - 1, b = i / 11 % 7 - 5, d = i % 11 - 6;
    const bool inside = a >= 0 && a < 3 && b >= 0 && d >= 0 && d < 4;
    EXPECT_EQ(sum[i], inside ? x[(a * 2 + b) * 4 + d] : 0) << i;
    EXPECT_EQ(maximum[i], inside ? x[(a * 2 + b) * 4 + d] : -std::numeric_limits<double>::infinity()) << i;
  }
  c.inputs = {Empty(T(), {0, 2, 4}, {11, 5, 26})};
  EXPECT_TRUE(c.Tested()[0].SameBits(c.Reference()[0]));
}

/// Calls of every row-wise kernel on rows of `d` elements, with what may be wrong absolutely.
std::vector<std::pair<Case, double>> RowCases(Random& random, Dtype type, int64_t d) {
  const Shape rows{2, 3, d};
  const auto real = [&](Shape shape) { return random.Real(type, std::move(shape)); };
  const auto f32 = [&](Shape shape, double low = -1, double high = 1) {
    return random.Real(kF32, std::move(shape), low, high);
  };
  const Attributes numbers{{{"eps", 1e-1}}, {}};
  const OwnedTensor x = real(rows), dy = real(rows), w = real({d}), y(type, rows), row(kF32, {2, 3}),
                    mean = f32({2, 3}), rstd = f32({2, 3}, 1, 2);
  const OwnedTensor ids = random.Integer({2, 3}, 0, 4), positions = random.Integer({3}, 0, 4), sums = f32({2, 3}, 1, 2);
  Case padded{"pad", {random.Real(type, {1, 2, d}, -1, 1, {1, 1, 3})}, {OwnedTensor(type, {2, 3, d + 8})}};
  return {
      {{"embedding", {ids, real({4, d})}, {y}}, 0},
      {{"embedding_grad", {ids, dy}, {f32({4, d})}}, SumBound(6, 1)},
      {{"embedding_grad", {ids, dy}, {f32({4, d})}, {}, true}, SumBound(7, 1)},
      {{"rms_norm", {x, w}, {y, row}, numbers}, SumBound(d, 4)},
      {{"rms_norm", {x, w, dy}, {y, row, y}, numbers}, SumBound(d, 8)},
      {{"rms_norm_grad", {x, w, rstd, dy}, {y}}, SumBound(d, 16)},
      {{"rms_norm_grad", {x, w, rstd, dy, x}, {y}}, SumBound(d, 16) + 16 * UnitOf(type)},
      {{"rms_norm_weight_grad", {x, rstd, dy}, {f32({d})}}, SumBound(6, 2) + (type == kBf16 ? 6.0 / 128 : 0)},
      {{"layer_norm", {x, w, w}, {y, row, row}, numbers}, SumBound(d, 16)},
      {{"layer_norm", {x, w, w, dy}, {y, row, row, y}, numbers}, SumBound(d, 16)},
      {{"layer_norm_grad", {x, w, mean, rstd, dy}, {y}}, SumBound(d, 32)},
      {{"layer_norm_grad", {x, w, mean, rstd, dy, x}, {y}}, SumBound(d, 32) + 32 * UnitOf(type)},
      {{"layer_norm_weight_grad", {x, mean, rstd, dy}, {f32({d}), f32({d})}}, SumBound(6, 4)},
      {{"position_embedding", {x, positions, real({5, d})}, {y}}, SumBound(2, 1)},
      {{"position_embedding_grad", {positions, dy}, {f32({5, d})}}, SumBound(6, 1)},
      {{"add_bias", {x, w}, {y}}, SumBound(2, 1)},
      {{"bias_grad", {dy}, {f32({d})}}, SumBound(6, 1)},
      {{"gelu", {x}, {y}}, SumBound(8, 1)},
      {{"gelu_grad", {x, dy}, {y}}, SumBound(8, 1)},
      {{"rope",
        {real({2, 3, 2 * d * 2}), f32({3, 2 * d})},
        {OwnedTensor(type, {2, 3, 2 * d * 2})},
        {{{"head_dim", 2 * d}, {"inverse", 0}}, {}}},
       SumBound(2, 1)},
      {{"attention_merge",
        {f32({2, 3, 2 * d}), f32({2, 2, 3}), f32({2, 3, 2 * d}), f32({2, 2, 3})},
        {OwnedTensor(type, {2, 3, 2 * d}), OwnedTensor(kF32, {2, 2, 3})}},
       SumBound(2, 4)},
      {{"add", {x, dy, x}, {y}}, SumBound(3, 1)},
      {{"swiglu", {x, dy}, {y}}, SumBound(8, 1)},
      {{"swiglu_grad", {x, dy, dy}, {y, y}}, SumBound(8, 1)},
      {{"logits_max", {x}, {row}}, 0},
      {{"logits_sum", {x, mean, ids}, {row, row}}, SumBound(d, 8) * static_cast<double>(d)},
      {{"token_loss", {mean, sums, mean, ids}, {f32({}), f32({})}}, SumBound(6, 4)},
      {{"cross_entropy_grad", {x, mean, sums, ids}, {y}}, SumBound(4, 8)},
      {{"cast", {x}, {OwnedTensor(kF32, rows)}}, 0},
      {{"cast", {f32(rows)}, {y}}, 0},
      {{"accumulate", {f32(rows)}, {f32(rows)}, {}, true}, SumBound(2, 1)},
      {{"sum_squares", {f32(rows)}, {f32({})}}, 0},
      {{"slice", {real({2, 3, d + 8})}, {OwnedTensor(type, {1, 2, d}, {1, 1, 3})}}, 0},
      {padded, 0},
  };
}

// Rows that are, and are not, whole packs of 16 bytes; tensors at boundaries of 16 bytes, and one element behind.
TEST_P(Kernels, RowsOfAnyWidthAnywhere) {
  for (int64_t d : {1, 7, 33, 64, 1025, 1032}) {
    for (auto& [c, absolute] : RowCases(random_, T(), d)) {
      Check(c, absolute);
      Case shifted = c;
      for (std::vector<OwnedTensor>* tensors : {&shifted.inputs, &shifted.outputs})
        for (OwnedTensor& x : *tensors) x = x.Shifted(1);
      Check(shifted, absolute);
      shifted.inputs[0] = c.inputs[0];  // one alone where packs may lie
      Check(shifted, absolute);
      if (HasFatalFailure()) return;
    }
  }
}

// An extent of 0 is a legal piece: nothing is read or written out of place, sums over nothing are 0.
TEST_P(Kernels, EmptyExtents) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const Attributes head{{{"head_dim", 4}, {"causal", 1}, {"inverse", 0}, {"eps", 1e-5}, {"theta", 1e4}}, {}};
  const auto ids = [&](Shape s) { return random_.Integer(s, 0, 3); };
  for (const auto& [b, s, v, d] :
       {std::array<int64_t, 4>{0, 3, 4, 8}, {2, 0, 4, 8}, {2, 3, 0, 8}, {2, 3, 4, 0}, {0, 0, 0, 0}}) {
    const OwnedTensor x = Real({b, s, d}), y = Empty(T(), {b, s, d}), w = Real({d});
    const OwnedTensor row = F32({b, s}), logits = Real({b, s, v});
    Check({"embedding", {ids({b, s}), Real({v, d})}, {y}}, 0);
    Check({"embedding_grad", {ids({b, s}), x}, {F32({v, d})}}, SumBound(6, 1));
    if (d > 0) Check({"rms_norm", {x, w}, {y, row}, head}, SumBound(d, 4));
    if (d > 0) Check({"rms_norm_grad", {x, w, row, x}, {y}}, SumBound(d, 4));
    if (d > 0) Check({"rms_norm", {x, w, x}, {y, row, y}, head}, SumBound(d, 8));
    if (d > 0) Check({"rms_norm_grad", {x, w, row, x, x}, {y}}, SumBound(d, 4));
    Check({"rms_norm_weight_grad", {x, row, x}, {F32({d})}}, SumBound(6, 1) + 0.1);
    Check({"matmul", {x, Real({v, d})}, {logits}, spec("bsk,nk->bsn")}, SumBound(8, 1), false);
    Check({"matmul", {logits, Real({v, d})}, {y}, spec("bsn,nk->bsk")}, SumBound(8, 1), false);
    Check({"matmul", {logits, x}, {F32({v, d})}, spec("bsn,bsk->nk")}, SumBound(8, 1), false);
    Check({"matmul", {logits, x}, {F32({v, d})}, spec("bsn,bsk->nk"), true}, SumBound(8, 1), false);
    Check({"matmul", {x, Real({d, v})}, {logits}, spec("bsk,kn->bsn")}, SumBound(8, 1), false);
    if (d > 0) Check({"layer_norm", {x, w, w}, {y, row, row}, head}, SumBound(d, 400));
    if (d > 0) Check({"layer_norm_grad", {x, w, row, row, x}, {y}}, SumBound(d, 8));
    if (d > 0) Check({"layer_norm", {x, w, w, x}, {y, row, row, y}, head}, SumBound(d, 400));
    if (d > 0) Check({"layer_norm_grad", {x, w, row, row, x, x}, {y}}, SumBound(d, 8));
    Check({"layer_norm_weight_grad", {x, row, row, x}, {F32({d}), F32({d})}}, SumBound(6, 4));
    const OwnedTensor positions = random_.Integer({s}, 0, 4);
    Check({"position_embedding", {x, positions, Real({5, d})}, {y}}, SumBound(2, 1));
    Check({"position_embedding_grad", {positions, x}, {F32({5, d})}}, SumBound(6, 1));
    Check({"add_bias", {x, w}, {y}}, SumBound(2, 1));
    Check({"bias_grad", {x}, {F32({d})}}, SumBound(6, 1));
    Check({"gelu", {x}, {y}}, SumBound(8, 1));
    Check({"gelu_grad", {x, x}, {y}}, SumBound(8, 1));
    Check({"rope", {x, F32({s, 4})}, {y}, head}, SumBound(2, 1));
    Check({"add", {x, x}, {y}}, 0);
    Check({"swiglu", {x, x}, {y}}, SumBound(8, 1));
    Check({"swiglu_grad", {x, x, x}, {y, y}}, SumBound(8, 1));
    Check({"logits_max", {logits}, {row}}, 0);
    Check({"logits_sum", {logits, row, ids({b, s})}, {row, row}}, SumBound(64, 1));
    Check({"token_loss", {row, F32({b, s}, 1, 2), row, ids({b, s})}, {F32({}), F32({})}}, SumBound(6, 1));
    Check({"cross_entropy_grad", {logits, row, F32({b, s}, 1, 2), ids({b, s})}, {logits}}, SumBound(4, 8));
    Check({"cast", {x}, {F32({b, s, d})}}, 0);
    Check({"sum_squares", {F32({b, s, d})}, {F32({})}}, 0);
    Check({"accumulate", {F32({b, s, d})}, {F32({b, s, d})}}, 0);
    Check({"slice", {x}, {y}}, 0);
    Check({"pad", {x}, {y}}, 0);
    const Case attention{"attention", {x, Real({b, v, d}), Real({b, v, d})}, {y, F32({b, d / 4, s})}, head};
    Check(attention, 0.02);
    Check(AttentionGradCase(random_, attention), 0.05);
    Check(AdamwCase({0, 0}, 1), 0);
  }
  Check({"rope_table", {ids({0})}, {Empty(kF32, {0, 4})}, head}, 0);
}

TEST(KernelsTable, EveryOpHasAKernel) {
#define ESPALIER_NAME(name, function) name,
  for (const char* op : {ESPALIER_KERNELS(ESPALIER_NAME)}) EXPECT_TRUE(IsTested(op)) << op;
#undef ESPALIER_NAME
  EXPECT_FALSE(IsTested("no_such_op"));
}

}  // namespace
}  // namespace espalier
