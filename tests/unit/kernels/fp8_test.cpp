// Values in fp8, their scales, and their matmuls.
#include "kernels/fp8.hpp"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <span>
#include <tuple>

#include "espalier/kernels/shapes.hpp"
#include "fp8_testing.hpp"

namespace espalier::testing {
namespace {

constexpr Dtype kFormats[] = {Dtype::kF8E4M3, Dtype::kF8E5M2};

/// The codes of a format in ascending order of their values, from 0 to the largest.
std::vector<float> ValuesOf(Dtype format) {
  std::vector<float> values;
  for (int code = 0; code < 0x80; ++code)
    if (const float value = FromFp8(format, static_cast<uint8_t>(code)); std::isfinite(value)) values.push_back(value);
  return values;
}

uint8_t Code(Dtype format, float x) {
  return format == Dtype::kF8E4M3 ? ToFp8<Dtype::kF8E4M3>(x) : ToFp8<Dtype::kF8E5M2>(x);
}

TEST(Fp8, HasTheValuesOfItsFormat) {
  EXPECT_EQ(ValuesOf(Dtype::kF8E4M3).size(), 127u);
  EXPECT_EQ(ValuesOf(Dtype::kF8E5M2).size(), 124u);
  EXPECT_EQ(ValuesOf(Dtype::kF8E4M3).back(), 448);
  EXPECT_EQ(ValuesOf(Dtype::kF8E5M2).back(), 57344);
  EXPECT_EQ(ValuesOf(Dtype::kF8E4M3)[1], 0x1p-9f);
  EXPECT_EQ(ValuesOf(Dtype::kF8E5M2)[1], 0x1p-16f);
  EXPECT_EQ(FromFp8(Dtype::kF8E4M3, 0x3d), 1.625f);
  EXPECT_EQ(FromFp8(Dtype::kF8E5M2, 0xbe), -1.5f);
  for (Dtype format : kFormats) {
    const std::vector<float> values = ValuesOf(format);
    EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
    EXPECT_TRUE(std::isnan(FromFp8(format, kFp8Nan)));
  }
}

/// The nearest value by search, ties to an even code.
uint8_t Nearest(const std::vector<float>& values, float magnitude) {
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  const auto code = static_cast<size_t>(above - values.begin());
  if (above == values.end()) return static_cast<uint8_t>(values.size() - 1);
  if (code == 0 || *above == magnitude) return static_cast<uint8_t>(code);
  const double up = double(*above) - magnitude, down = double(magnitude) - values[code - 1];
  return static_cast<uint8_t>(up < down || (up == down && code % 2 == 0) ? code : code - 1);
}

// All bf16 values, the values halfway to the next one, and their nearest neighbours.
TEST(Fp8, RoundsToNearestEvenAndSaturates) {
  for (Dtype format : kFormats) {
    const std::vector<float> values = ValuesOf(format);
    for (uint32_t upper = 0; upper < 0x7f80u; ++upper)
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const float x = std::bit_cast<float>(upper << 16 | lower);
        const uint8_t expected = Nearest(values, x);
        ASSERT_EQ(Code(format, x), expected) << Name(format) << " of " << x;
        ASSERT_EQ(Code(format, -x), expected | 0x80) << Name(format) << " of " << -x;
      }
    for (size_t code = 0; code + 1 < values.size(); ++code) {
      const float half = values[code] / 2 + values[code + 1] / 2;
      ASSERT_EQ(Code(format, half), code % 2 == 0 ? code : code + 1);
      ASSERT_EQ(Code(format, std::nextafter(half, 1e9f)), code + 1);
    }
    for (float x : {kInfinity, -kInfinity, std::nanf("")}) EXPECT_EQ(Code(format, x), kFp8Nan);
  }
}

TEST(Fp8, AScaleIsTheSmallestPowerOfTwoThatFits) {
  for (Dtype format : kFormats) {
    const double largest = ValuesOf(format).back();
    EXPECT_EQ(ScaleFor(format, 0), 1);
    EXPECT_TRUE(std::isnan(ScaleFor(format, 0x7f80u)));
    EXPECT_TRUE(std::isnan(ScaleFor(format, 0x7fc1u)));
    EXPECT_TRUE(std::isnan(InverseOf(ScaleFor(format, 0x7f80u))));
    for (uint16_t bits = 1; bits < 0x7f80u; ++bits) {
      const double x = ToFloat(Bf16{bits});
      const float scale = ScaleFor(format, bits);
      ASSERT_EQ(scale * InverseOf(scale), 1.0f) << x;
      ASSERT_EQ(std::exp2(std::round(std::log2(scale))), scale);
      ASSERT_TRUE(x / scale <= largest) << Name(format) << ": " << x << " by " << scale;
      ASSERT_TRUE(scale == 0x1p-126f || x / scale > largest / 2) << Name(format) << ": " << x << " by " << scale;
    }
  }
}

struct Spec {
  const char* text;
  bool transposed;
  Scales scales;
  bool HasRows() const { return scales == Scales::kRow; }
};
constexpr Spec kTokens[] = {{"bsk->bsk,y", false, Scales::kTensor},
                            {"bsk->kbs,y", true, Scales::kTensor},
                            {"bsk->bsk,bsy", false, Scales::kRow},
                            {"bsk->kbs,ky", true, Scales::kRow}};
constexpr Spec kWeights[] = {{"nk->nk,y", false, Scales::kTensor},
                             {"nk->kn,y", true, Scales::kTensor},
                             {"nk->nk,ny", false, Scales::kRow},
                             {"nk->kn,ky", true, Scales::kRow}};
constexpr Spec kTokenBlocks[] = {{"bsk->bsk,yu", false, Scales::kMx}, {"bsk->kbs,yu", true, Scales::kMx}};
constexpr Spec kWeightBlocks[] = {{"nk->nk,yu", false, Scales::kMx}, {"nk->kn,yu", true, Scales::kMx}};

/// A call with its outputs. Columns have different magnitudes, and so different scales. `spare`: more bytes for the
/// scales of blocks, as a rank has that holds fewer rows than others.
Case QuantizeCase(const Spec& spec, Dtype format, OwnedTensor x, int64_t spare = 0) {
  const int64_t width = x.shape().back();
  Shape stored = x.shape(), scales;
  const MatrixExtents matrix = MatrixOf(stored, 1);
  if (spec.transposed) {
    stored.pop_back();
    stored.insert(stored.begin(), width);
  }
  if (spec.HasRows()) scales = spec.transposed ? Shape{width} : Shape(x.shape().begin(), x.shape().end() - 1);
  scales.push_back(1);
  const bool blocks = spec.scales == Scales::kMx;
  if (blocks)
    scales.push_back(spare + (spec.transposed ? BlockScaleBytes(matrix.columns, matrix.rows)
                                              : BlockScaleBytes(matrix.rows, matrix.columns)));
  return {"quantize",
          {std::move(x)},
          {OwnedTensor(format, stored), OwnedTensor(blocks ? Dtype::kF8E8M0 : kF32, scales)},
          QuantizeTo(format, spec.text)};
}

TEST(KernelsFp8, QuantizesBitByBit) {
  Random random;
  for (Dtype format : kFormats) {
    for (const Shape& shape :
         {Shape{1, 1, 1}, {2, 3, 5}, {1, 65, 127}, {3, 64, 192}, {1, 1030, 17}, {2, 0, 5}, {1, 3, 0}})
      for (const Spec& spec : kTokens) CheckBits(QuantizeCase(spec, format, Spread(random, shape)));
    for (const Shape& shape : {Shape{1, 1}, {33, 40}, {128, 352}, {301, 77}})
      for (const Spec& spec : kWeights) CheckBits(QuantizeCase(spec, format, Spread(random, shape)));
  }
}

TEST(KernelsFp8, QuantizesBlocksBitByBit) {
  Random random;
  for (Dtype format : kFormats) {
    for (const Shape& shape : {Shape{1, 1, 32}, {2, 3, 64}, {1, 133, 160}, {3, 43, 288}, {2, 0, 32}, {1, 5, 0}})
      for (const int64_t spare : {0, 512})
        CheckBits(QuantizeCase(kTokenBlocks[0], format, Spread(random, shape), spare));
    for (const Shape& shape : {Shape{1, 32, 1}, {2, 48, 5}, {1, 160, 133}, {3, 96, 66}, {2, 0, 5}, {1, 32, 0}})
      CheckBits(QuantizeCase(kTokenBlocks[1], format, Spread(random, shape)));
    CheckBits(QuantizeCase(kWeightBlocks[0], format, Spread(random, {77, 352})));
    CheckBits(QuantizeCase(kWeightBlocks[1], format, Spread(random, {352, 77})));
  }
}

/// The scales of 131 lines of five blocks, where only one block is not 0: 4 such scales in a tile of 512.
std::vector<uint8_t> ScalesWithOne(bool transposed, int64_t line, int64_t block) {
  constexpr int64_t kLines = 131, kDepth = 160;
  OwnedTensor x(kBf16, transposed ? Shape{1, kDepth, kLines} : Shape{1, kLines, kDepth});
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, 0);
  const int64_t at = block * 32 + 7;
  x.Set(transposed ? at * kLines + line : line * kDepth + at, -900);  // above 2 * 448, so 4 * 225
  const std::vector<OwnedTensor> made = QuantizeCase(kTokenBlocks[transposed], Dtype::kF8E4M3, x).Tested();
  EXPECT_EQ(made[0][line * kDepth + at], -224);
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < made[1].Count(); ++i) codes.push_back(ToE8M0(static_cast<float>(made[1][i])));
  return codes;
}

// Tiles of 128 lines by 4 blocks, one after the other; in a tile 32 groups of 16 bytes, each the four blocks of lines
// 32 apart ("1D Block Scaling Factors Layout", cuBLAS).
TEST(KernelsFp8, ScalesOfBlocksLieInTiles) {
  for (const bool transposed : {false, true})
    for (const auto& [line, block, place] : {std::tuple{0, 0, 0},
                                             {0, 3, 3},
                                             {1, 0, 16},
                                             {31, 2, 31 * 16 + 2},
                                             {32, 0, 4},
                                             {97, 1, 16 + 3 * 4 + 1},
                                             {5, 4, 512 + 5 * 16},
                                             {128, 0, 1024},
                                             {130, 4, 1536 + 2 * 16}}) {
      const std::vector<uint8_t> codes = ScalesWithOne(transposed, line, block);
      ASSERT_EQ(codes.size(), 4u * 512);
      EXPECT_EQ(codes[static_cast<size_t>(place)], 127 + 2) << line << " " << block;
      EXPECT_EQ(std::ranges::count(codes, 127), 131 * 5 - 1) << "zeros have scale 1";
      EXPECT_EQ(std::ranges::count(codes, 0), 4 * 512 - 131 * 5) << "what pads tiles is 0";
    }
}

// Another block has the scale and the bits that it had.
TEST(KernelsFp8, WhatIsNotFiniteStaysInItsBlock) {
  Random random;
  for (const bool transposed : {false, true})
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      OwnedTensor x = Spread(random, transposed ? Shape{1, 96, 3} : Shape{1, 3, 96});
      const auto quantize = [&] { return QuantizeCase(kTokenBlocks[transposed], Dtype::kF8E4M3, x).Tested(); };
      const std::vector<OwnedTensor> before = quantize();
      x.Set(transposed ? 40 * 3 + 1 : 96 + 40, bad);
      const std::vector<OwnedTensor> after = quantize();
      for (int64_t i = 0; i < after[0].Count(); ++i) {
        const bool of_block = 96 + 32 <= i && i < 96 + 64;
        EXPECT_TRUE(of_block ? std::isnan(after[0][i]) : after[0][i] == before[0][i]) << i;
      }
      for (int64_t i = 0; i < after[1].Count(); ++i)
        EXPECT_TRUE(i == 16 + 1 ? std::isnan(after[1][i]) : after[1][i] == before[1][i]) << i;
    }
}

TEST(Fp8, ScalesOfBlocksAreExponents) {
  for (int code = 1; code < 0xff; ++code) {
    const float scale = FromE8M0(static_cast<uint8_t>(code));
    EXPECT_EQ(scale, std::ldexp(1.0f, code - 127));
    EXPECT_EQ(ToE8M0(scale), code);
  }
  EXPECT_EQ(FromE8M0(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(FromE8M0(0xff)));
  for (Dtype format : kFormats)
    for (uint16_t bits = 0; bits <= 0x7fffu; ++bits) {
      const float scale = ScaleFor(format, bits), read = FromE8M0(ToE8M0(scale));
      ASSERT_TRUE(read == scale || (std::isnan(read) && std::isnan(scale))) << bits;
    }
}

TEST(KernelsFp8, ZerosHaveScaleOneAndWhatIsNotFiniteStaysVisible) {
  for (const Spec& spec : kTokens) {
    OwnedTensor x(kBf16, {1, 3, 16});
    for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, 0);
    const std::vector<OwnedTensor> zeros = QuantizeCase(spec, Dtype::kF8E4M3, x).Tested();
    for (int64_t i = 0; i < zeros[1].Count(); ++i) EXPECT_EQ(zeros[1][i], 1);
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      x.Set(20, bad);
      const std::vector<OwnedTensor> seen = QuantizeCase(spec, Dtype::kF8E4M3, x).Tested();
      const int64_t scale = !spec.HasRows() ? 0 : spec.transposed ? 4 : 1, at = spec.transposed ? 4 * 3 + 1 : 20;
      EXPECT_TRUE(std::isnan(seen[1][scale])) << spec.text;
      EXPECT_TRUE(std::isnan(seen[0][at])) << spec.text;
      if (spec.HasRows()) EXPECT_EQ(seen[1][scale + 1], 1) << spec.text << ": other rows are not touched";
    }
  }
}

// Compared with fp64 sums of the quantized values, which are exact.
TEST(KernelsFp8, MatmulsMultiplyWhatWasQuantized) {
  Random random;
  const auto e4m3 = Dtype::kF8E4M3;
  constexpr Sizes kSizes[] = {{16, 16, 16}, {48, 32, 64}, {80, 144, 176}}, kInBlocks[] = {{32, 32, 32}, {96, 160, 288}};
  struct Form {
    Scales scales;
    std::span<const Sizes> sizes;
    const Spec *tokens, *weights;
    Dtype gradients;
  };
  const Form forms[] = {{Scales::kTensor, kSizes, kTokens, kWeights, Dtype::kF8E5M2},
                        {Scales::kRow, kSizes, kTokens + 2, kWeights + 2, Dtype::kF8E5M2},
                        {Scales::kMx, kInBlocks, kTokenBlocks, kWeightBlocks, e4m3}};
  for (const Form& form : forms)
    for (const Sizes s : form.sizes) {
      if (!Multiplies(form.scales)) {
        std::cout << "no such GPU: scales by " << Name(form.scales) << "\n";
        break;
      }
      const Spec *tokens = form.tokens, *weights = form.weights;
      const OwnedTensor x = random.Real(kBf16, {1, s.rows, s.k}), dy = random.Real(kBf16, {1, s.rows, s.n}),
                        w = random.Real(kBf16, {s.n, s.k}), bias = random.Real(kBf16, {s.n});
      const auto quantize = [](const Spec& spec, Dtype format, const OwnedTensor& value) {
        return QuantizeCase(spec, format, value).Reference();
      };
      const auto check = [&](const char* spec, const std::vector<OwnedTensor>& a, const std::vector<OwnedTensor>& b,
                             std::vector<OwnedTensor> more, OwnedTensor result, int64_t depth, bool accumulate) {
        std::vector<OwnedTensor> inputs = {a[0], b[0]};
        inputs.insert(inputs.end(), more.begin(), more.end());
        inputs.insert(inputs.end(), {a[1], b[1]});
        Check({"matmul",
               inputs,
               {std::move(result)},
               {{}, {{"spec", spec}, {"scales", std::string(Name(form.scales))}}},
               accumulate},
              Fp8SumBound(depth), false);
      };
      const OwnedTensor y(kBf16, {1, s.rows, s.n}), dx(kBf16, {1, s.rows, s.k});
      check("bsk,nk->bsn", quantize(tokens[0], e4m3, x), quantize(weights[0], e4m3, w), {}, y, s.k, false);
      check("bsk,nk->bsn", quantize(tokens[0], e4m3, x), quantize(weights[0], e4m3, w), {bias}, y, s.k, false);
      check("bsn,kn->bsk", quantize(tokens[0], form.gradients, dy), quantize(weights[1], e4m3, w), {}, dx, s.n, false);
      for (bool accumulate : {false, true}) {
        check("nbs,kbs->nk", quantize(tokens[1], form.gradients, dy), quantize(tokens[1], e4m3, x), {},
              random.Real(kF32, {s.n, s.k}), s.rows, accumulate);
        check("kbs,nbs->kn", quantize(tokens[1], e4m3, x), quantize(tokens[1], form.gradients, dy), {},
              random.Real(kF32, {s.k, s.n}), s.rows, accumulate);
      }
    }
}

// A rank's shards are rounded like the whole tensor, except for underflow: scales are powers of two.
TEST(KernelsFp8, AShardIsRoundedAsTheWhole) {
  Random random;
  for (Dtype format : kFormats) {
    OwnedTensor whole = random.Real(kBf16, {1, 6, 64}, 0.01, 1);
    OwnedTensor half(kBf16, {1, 3, 64});
    for (int64_t i = 0; i < half.Count(); ++i) half.Set(i, whole[i] / 32);
    for (int64_t i = 0; i < half.Count(); ++i) whole.Set(i, half[i]);
    const auto of_whole = QuantizeCase(kTokens[0], format, whole).Tested(),
               of_half = QuantizeCase(kTokens[0], format, half).Tested();
    EXPECT_NE(of_whole[1][0], of_half[1][0]);
    for (int64_t i = 0; i < half.Count(); ++i)
      ASSERT_EQ(of_whole[0][i] * of_whole[1][0], of_half[0][i] * of_half[1][0]);
  }
}

}  // namespace
}  // namespace espalier::testing
