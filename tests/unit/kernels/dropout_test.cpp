// Dropout of rows of tokens and of probabilities: which elements are kept (src/kernels/dropout.hpp, doc/numerics.md),
// and that elements do not depend on their shard.
#include "espalier/util/philox.hpp"
#include "fixture.hpp"

namespace espalier::testing {
namespace {

constexpr double kStep = 5;
const uint64_t kKey = StreamKey(17, "dropout/here");

Attributes DropoutOf(double rate) { return {{{"rate", rate}}, {{"key", fmt::format("{:016x}", kKey)}}}; }

/// The rule as documented.
bool IsKept(double rate, int64_t token, int64_t column, int64_t plane = 0) {
  const auto words = Philox4x32({static_cast<uint32_t>(column / 4), static_cast<uint32_t>(token),
                                 static_cast<uint32_t>(kStep), static_cast<uint32_t>(plane)},
                                {static_cast<uint32_t>(kKey), static_cast<uint32_t>(kKey >> 32)});
  return words[static_cast<size_t>(column % 4)] >= std::round(rate * 4294967296.0);
}

OwnedTensor StepTensor() {
  OwnedTensor step(kF32, {});
  step.Set(0, kStep);
  return step;
}
/// Token numbers of sequences of `length`, at these positions; large numbers are negative in 32 bits.
OwnedTensor TokensFrom(int64_t batch, int64_t rows, int64_t start, int64_t length, int64_t first = 0) {
  OwnedTensor tokens(Dtype::kI32, {batch, rows});
  for (int64_t i = 0; i < tokens.Count(); ++i)
    tokens.Set(i, static_cast<int32_t>(static_cast<uint32_t>(first + i / rows * length + start + i % rows)));
  return tokens;
}

Case DropoutCase(OwnedTensor x, OwnedTensor tokens, double rate) {
  const OwnedTensor y(x.dtype(), x.shape(), x.View().start);
  return {"dropout", {std::move(x), std::move(tokens), StepTensor()}, {y}, DropoutOf(rate)};
}

TEST_P(Kernels, Dropout) {
  for (const Shape& shape : {Shape{1, 1, 1}, {2, 3, 17}, {1, 5, 64}, {3, 7, 1030}, {2, 40, 768}, {2, 0, 8}}) {
    for (double rate : {1e-3, 0.1, 0.5, 0.99}) {
      const Case c = DropoutCase(Real(shape), TokensFrom(shape[0], shape[1], 2, 100, 0xffffff80), rate);
      Check(c, 0);
      CheckInPlace(c, 0, 0);
    }
  }
}

TEST_P(Kernels, DropoutKeepsWhatIsDocumented) {
  constexpr int64_t kFirst = 6, kRows = 9, kWidth = 21;
  const double rate = 0.3;
  OwnedTensor x(T(), {2, kRows, kWidth}, {0, 0, kFirst});
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, 1);
  const OwnedTensor tokens = TokensFrom(2, kRows, 4, 50), y = DropoutCase(x, tokens, rate).Tested()[0];
  for (int64_t i = 0; i < y.Count(); ++i) {
    const auto scale = static_cast<float>(1 / (1 - rate));
    const double kept = T() == kBf16 ? ToFloat(ToBf16(scale)) : scale;
    EXPECT_EQ(y[i], IsKept(rate, int64_t(tokens[i / kWidth]), kFirst + i % kWidth) ? kept : 0) << "element " << i;
  }
}

// A shard's rows and columns are dropped as in the whole tensor.
TEST_P(Kernels, DropoutOfAShardIsThatOfTheWhole) {
  constexpr int64_t kRows = 24, kWidth = 40;
  const OwnedTensor x = Real({2, kRows, kWidth}),
                    whole = DropoutCase(x, TokensFrom(2, kRows, 0, kRows), 0.4).Tested()[0];
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {5, 8}, {11, 3}, {23, 39}}) {
    const int64_t rows = kRows - row, width = kWidth - column;
    OwnedTensor part(T(), {2, rows, width}, {0, row, column});
    const auto in_whole = [&](int64_t i) {
      return (i / (rows * width) * kRows + row + i / width % rows) * kWidth + column + i % width;
    };
    for (int64_t i = 0; i < part.Count(); ++i) part.Set(i, x[in_whole(i)]);
    const OwnedTensor y = DropoutCase(part, TokensFrom(2, rows, row, kRows), 0.4).Tested()[0];
    for (int64_t i = 0; i < y.Count(); ++i) ASSERT_EQ(y[i], whole[in_whole(i)]) << row << ", " << column;
  }
}

/// The share of kept elements, and of neighbours that are both kept.
struct Shares {
  double kept = 0, both_in_row = 0, both_in_column = 0;
};
Shares SharesOf(const OwnedTensor& y, int64_t rows, int64_t width) {
  Shares s;
  for (int64_t r = 0; r + 1 < rows; ++r)
    for (int64_t c = 0; c + 1 < width; ++c) {
      const bool kept = y[r * width + c] != 0;
      s.kept += kept;
      s.both_in_row += kept && y[r * width + c + 1] != 0;
      s.both_in_column += kept && y[(r + 1) * width + c] != 0;
    }
  const double count = double(rows - 1) * double(width - 1);
  return {s.kept / count, s.both_in_row / count, s.both_in_column / count};
}

// Within six standard deviations for a quarter of a million draws.
TEST_P(Kernels, DropoutIsFairAndNeighboursAreIndependent) {
  constexpr int64_t kRows = 512, kWidth = 512;
  OwnedTensor x(T(), {1, kRows, kWidth});
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, 1);
  for (double rate : {0.1, 0.5}) {
    const Shares s = SharesOf(DropoutCase(x, TokensFrom(1, kRows, 0, kRows), rate).Tested()[0], kRows, kWidth);
    const double kept = 1 - rate, bound = 6 * 0.5 / 511;
    EXPECT_NEAR(s.kept, kept, bound);
    EXPECT_NEAR(s.both_in_row, kept * kept, bound);
    EXPECT_NEAR(s.both_in_column, kept * kept, bound);
  }
}

/// Attention with dropout: each query's token by its position.
Case DropoutAttention(Random& random, Dtype type, const Heads& h, double rate) {
  Case c = AttentionCase(random, type, h);
  OwnedTensor tokens(Dtype::kI32, {h.batch, h.queries});
  for (int64_t i = 0; i < tokens.Count(); ++i)
    tokens.Set(i, double(i / std::max<int64_t>(1, h.queries) * 1000 +
                         ZigzagPosition(h.query_start + i % std::max<int64_t>(1, h.queries), h.length, h.cp)));
  c.inputs.insert(c.inputs.end(), {tokens, StepTensor()});
  const Attributes dropout = DropoutOf(rate);
  c.attributes.numbers["rate"] = rate;
  c.attributes.texts = dropout.texts;
  return c;
}

const Heads kDropped[] = {
    {1, 1, 1, 1, 1, 2},
    {2, 17, 17, 3, 3, 6},
    {1, 65, 65, 4, 2, 16},
    {2, 127, 127, 6, 2, 34},
    {1, 200, 200, 2, 1, 64},
    {1, 70, 70, 2, 1, 200},
    {2, 33, 65, 4, 4, 1, 32, 0},
    {0, 5, 5, 2, 1, 16},
    {1, 5, 0, 2, 1, 16, 0, 0, 0},
    {1, 63, 130, 2, 2, 10, 67, 0},
    {1, 65, 129, 3, 1, 16, 0, 0, 0},  // not causal
    {1, 66, 132, 2, 1, 16, 0, 0, 1, 2, 132},
    {1, 22, 66, 2, 2, 10, 22, 0, 1, 3, 66},
    {1, 140, 140, 2, 1, 16, 0, 0, 1, 2, 280, 0},
    {2, 66, 66, 2, 1, 10, 66, 66, 1, 3, 198, 1},
    {1, 127, 127, 4, 2, 16, 0, 0, 1, 1, 0, -1, 7},
    {2, 130, 130, 2, 2, 8, 0, 0, 1, 1, 0, -1, 40, 1},
};

TEST_P(Kernels, AttentionWithDropout) {
  for (const Heads& h : kDropped) {
    const Case c = DropoutAttention(random_, T(), h, 0.3);
    const double scores = SumBound(h.head_dim, 4 / std::sqrt(double(h.head_dim)));
    Check(c, 2 * (4 * scores + SumBound(h.keys, 1) + (T() == kBf16 ? 1.0 / 256 : 0)));
  }
}

TEST_P(Kernels, AttentionGradWithDropout) {
  for (const Heads& h : kDropped) {
    const Case c = AttentionGradCase(random_, DropoutAttention(random_, T(), h, 0.3));
    double largest = 1;
    for (const OwnedTensor& x : c.Reference()) largest = std::max(largest, x.Largest());
    const double relative = SumBound(h.head_dim + h.queries * h.heads / std::max<int64_t>(h.kv_heads, 1), 8) +
                            (T() == kBf16 ? 1.0 / 64 : 0);
    Check(c, 2 * largest * relative);
  }
}

// Values that are unit vectors show the probabilities: probabilities of kept keys are divided by 1 - rate, the others
// are 0, and lse does not change.
TEST_P(Kernels, AttentionDropsTheDocumentedProbabilities) {
  constexpr int64_t kLength = 32, kHeads = 2, kFirstHead = 3;
  const double rate = 0.4;
  Case plain = AttentionCase(random_, T(), {1, kLength, kLength, kHeads, 1, kLength});
  for (int64_t i = 0; i < plain.inputs[2].Count(); ++i) plain.inputs[2].Set(i, i / kLength == i % kLength);
  Case dropped = plain;
  dropped.inputs.insert(dropped.inputs.end(), {TokensFrom(1, kLength, 0, kLength, 64), StepTensor()});
  dropped.attributes.numbers["rate"] = rate;
  dropped.attributes.texts = DropoutOf(rate).texts;
  dropped.outputs[1] = OwnedTensor(kF32, plain.outputs[1].shape(), {0, kFirstHead, 0});
  const std::vector<OwnedTensor> all = plain.Tested(), kept = dropped.Tested();
  // GPUs have another kernel for bf16 without dropout.
  for (int64_t i = 0; i < all[1].Count(); ++i) EXPECT_NEAR(kept[1][i], all[1][i], T() == kBf16 ? 1e-2 : 0);
  for (int64_t i = 0; i < all[0].Count(); ++i) {
    const int64_t query = i / (kHeads * kLength), head = i / kLength % kHeads, key = i % kLength;
    const double expected = IsKept(rate, 64 + query, key, kFirstHead + head) ? all[0][i] / (1 - rate) : 0;
    EXPECT_NEAR(kept[0][i], expected, (T() == kBf16 ? 2e-2 : 1e-6) * std::abs(expected)) << query << " to " << key;
  }
}

// With a fixed mask, the gradient is the slope of a weighted sum of the results.
TEST(KernelsDropout, GradientsAreFiniteDifferences) {
  Random random;
  const Case forward = DropoutAttention(random, kF32, {1, 9, 9, 4, 2, 6}, 0.35);
  const Case backward = AttentionGradCase(random, forward);
  const OwnedTensor& weights = backward.inputs[5];
  const auto sum = [&](const Case& c) {
    const OwnedTensor o = c.Reference()[0];
    double total = 0;
    for (int64_t i = 0; i < o.Count(); ++i) total += o[i] * weights[i];
    return total;
  };
  const std::vector<OwnedTensor> gradients = backward.Tested();
  constexpr double kMove = 1e-2;
  for (size_t input = 0; input < 3; ++input)
    for (int64_t i = 0; i < forward.inputs[input].Count(); i += 5) {
      Case more = forward, less = forward;
      more.inputs[input].Set(i, forward.inputs[input][i] + kMove);
      less.inputs[input].Set(i, forward.inputs[input][i] - kMove);
      const double moved = more.inputs[input][i] - less.inputs[input][i];
      EXPECT_NEAR(gradients[input][i], (sum(more) - sum(less)) / moved, 2e-3) << "input " << input << ", element " << i;
    }
}

// The same sequence, whole and as a rank's part of a ring in zigzag order, has the same probabilities dropped.
TEST_P(Kernels, DropoutOfARingIsThatOfTheWhole) {
  constexpr int64_t kLength = 64, kCp = 2, kHeadDim = 8;
  const double rate = 0.5;
  const auto whole = DropoutAttention(random_, T(), {1, kLength, kLength, 1, 1, kHeadDim}, rate);
  const OwnedTensor o = whole.Tested()[0];
  const auto rows_of = [&](const OwnedTensor& x, int64_t rank) {
    constexpr int64_t kRows = kLength / kCp;
    OwnedTensor part(x.dtype(), {1, kRows, kHeadDim}, {0, rank * kRows, 0});
    for (int64_t i = 0; i < part.Count(); ++i)
      part.Set(i, x[ZigzagPosition(rank * kRows + i / kHeadDim, kLength, kCp) * kHeadDim + i % kHeadDim]);
    return part;
  };
  for (int64_t rank = 0; rank < kCp; ++rank) {
    std::vector<OwnedTensor> merged;
    for (int hop = 0; hop < kCp; ++hop) {
      const int64_t from = (rank + kCp - hop) % kCp, rows = kLength / kCp;
      Case part = DropoutAttention(
          random_, T(), {1, rows, rows, 1, 1, kHeadDim, rank * rows, rank * rows, 1, kCp, kLength, hop}, rate);
      part.inputs[0] = rows_of(whole.inputs[0], rank);
      for (size_t i : {1, 2}) {
        const OwnedTensor keys = rows_of(whole.inputs[i], from);
        OwnedTensor here(keys.dtype(), keys.shape(), {0, rank * rows, 0});
        for (int64_t k = 0; k < keys.Count(); ++k) here.Set(k, keys[k]);
        part.inputs[i] = here;
      }
      const std::vector<OwnedTensor> results = part.Tested();
      if (hop == 0)
        merged = results;
      else
        merged = Case{"attention_merge",
                      {merged[0], merged[1], results[0], results[1]},
                      {OwnedTensor(kF32, merged[0].shape()), OwnedTensor(kF32, merged[1].shape())}}
                     .Tested();
    }
    const OwnedTensor expected = rows_of(o, rank);
    for (int64_t i = 0; i < expected.Count(); ++i)
      EXPECT_NEAR(merged[0][i], expected[i], T() == kBf16 ? 3e-2 : 1e-5) << "rank " << rank << ", element " << i;
  }
}

}  // namespace
}  // namespace espalier::testing
