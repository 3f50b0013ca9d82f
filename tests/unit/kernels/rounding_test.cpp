// bf16 moments: which values are rounded by which random bits (src/kernels/stochastic_rounding.hpp, doc/numerics.md).
#include <cstdio>

#include "copy_cases.hpp"
#include "espalier/util/philox.hpp"
#include "fixture.hpp"

namespace espalier::testing {
namespace {

constexpr int64_t kSeed = 17;

struct Shard {
  Shape shape, start;
};

std::string Hex(uint64_t key) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(key));
  return text;
}
uint64_t KeyOf(size_t t) { return StreamKey(kSeed, "optimizer/" + std::to_string(t)); }

void Fill(OwnedTensor& x, double value) {
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, value);
}

/// The random bits as documented.
uint32_t DocumentedBits(uint64_t key, int64_t row, int64_t column, uint32_t step, int moment) {
  const auto words = Philox4x32({static_cast<uint32_t>(column / 4), static_cast<uint32_t>(row), step, 0},
                                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  const uint32_t word = words[static_cast<size_t>(column % 4)];
  return moment == 0 ? word % 65536 : word / 65536;
}
float DocumentedRounding(float x, uint32_t bits) {
  return ToFloat(Bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + bits) / 65536)});
}

/// As AdamwCase, with moments of bf16.
Case RoundedCase(const std::vector<Shard>& tensors, int decaying, double apply = 1, double step = 7) {
  Random random(3);
  Case c{"adamw", {}, {}};
  for (double x : {3e-2, step, 0.25, apply}) c.inputs.push_back(random.Real(kF32, {}, x, x));
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto& [shape, start] = tensors[t];
    const std::vector<OwnedTensor> state = {random.Real(kF32, shape, -1, 1, start),
                                            random.Real(kBf16, shape, -1, 1, start),
                                            random.Real(kBf16, shape, 0, 1, start)};
    c.inputs.insert(c.inputs.end(), state.begin(), state.end());
    c.inputs.push_back(random.Real(kF32, shape, -1, 1, start));
    c.outputs.insert(c.outputs.end(), state.begin(), state.end());
    c.attributes.texts["rounding"] += Hex(KeyOf(t));
  }
  c.attributes.numbers = {
      {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decaying", decaying}};
  return c;
}

/// The share of elements whose bits differ from the reference's: the fp32 results differ in the last bits, which rarely
/// matters. With other random bits half of the elements would differ.
void ExpectSameRounding(const OwnedTensor& tested, const OwnedTensor& reference) {
  int64_t other = 0;
  for (int64_t i = 0; i < tested.Count(); ++i) other += tested[i] != reference[i] ? 1 : 0;
  EXPECT_LE(other, tested.Count() / 500) << "of " << tested.Count();
}

const std::vector<Shard> kShards = {{{1}, {0}},           {{17}, {5}},          {{40001}, {3}},
                                    {{37, 19}, {100, 6}}, {{3, 4097}, {2, 64}}, {{129, 64}, {0, 128}},
                                    {{500, 3}, {7, 9}},   {{64, 1}, {0, 2}}};

TEST(KernelsRounding, AdamwIsTheReferences) {
  for (const Shard& shard : kShards) {
    for (int decaying : {0, 1}) {
      const Case c = RoundedCase({shard}, decaying);
      Check(c, SumBound(8, 1));
      for (size_t i = 0; i < 3; ++i) CheckInPlace(c, i, 4 + i);
      for (size_t i : {1, 2}) ExpectSameRounding(c.Tested()[i], c.Reference()[i]);
    }
  }
}

TEST(KernelsRounding, CopiesAreOfTheMaster) { CheckCopies(RoundedCase(kShards, 2), 3); }

// As in doc/numerics.md: with no gradient the first moment is beta1 times itself.
TEST(KernelsRounding, BitsAreTheDocumentedOnes) {
  const Shard shard = {{37, 19}, {100, 6}};
  Case c = RoundedCase({shard}, 0, 1, 12345);
  c.attributes.numbers["beta1"] = 0.5;
  c.attributes.numbers["beta2"] = 0.75;  // values of 8 bits times 2 bits: exact in fp32
  Fill(c.inputs[7], 0);
  Fill(c.outputs[1], 0);
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()})
    for (int64_t i = 0; i < results[2].Count(); ++i) {
      const int64_t row = 100 + i / 19, column = 6 + i % 19;
      const auto before = static_cast<float>(c.outputs[2][i]);
      ASSERT_EQ(results[2][i], DocumentedRounding(0.75f * before, DocumentedBits(KeyOf(0), row, column, 12345, 1)));
      ASSERT_EQ(results[1][i], 0) << "exact values are not rounded";
    }
}

/// The box of a matrix as a separate tensor.
OwnedTensor BoxOf(const OwnedTensor& whole, const Shard& box) {
  OwnedTensor part(whole.dtype(), box.shape, box.start);
  const int64_t columns = whole.shape().back();
  for (int64_t r = 0; r < box.shape[0]; ++r)
    for (int64_t k = 0; k < box.shape[1]; ++k)
      part.Set(r * box.shape[1] + k, whole[(box.start[0] + r) * columns + box.start[1] + k]);
  return part;
}

/// The same call on a box of all matrices.
Case OnBox(const Case& c, const Shard& box) {
  Case part = c;
  for (std::vector<OwnedTensor>* tensors : {&part.inputs, &part.outputs})
    for (OwnedTensor& x : *tensors)
      if (x.shape().size() == 2) x = BoxOf(x, box);
  return part;
}

void ExpectEqualOnBoxes(const Case& c) {
  const std::vector<OwnedTensor> whole = c.Tested();
  for (const Shard& box : std::vector<Shard>{{{61, 35}, {0, 35}},
                                             {{20, 70}, {41, 0}},
                                             {{1, 70}, {60, 0}},
                                             {{61, 1}, {0, 69}},
                                             {{33, 18}, {5, 51}},
                                             {{61, 3}, {0, 2}},
                                             {{2, 64}, {58, 4}}}) {
    const std::vector<OwnedTensor> part = OnBox(c, box).Tested();
    for (size_t o = 0; o < whole.size(); ++o)
      EXPECT_TRUE(part[o].SameBits(BoxOf(whole[o], box)))
          << c.op << " output " << o << " of " << ToString(box.shape) << " at " << ToString(box.start);
  }
}

TEST(KernelsRounding, AShardHasTheBitsOfTheWhole) { ExpectEqualOnBoxes(RoundedCase({{{61, 70}, {0, 0}}}, 1)); }

// However tensors are merged, split among threads and aligned, an element has the bits that its tensor has alone.
TEST(KernelsRounding, MergedTensorsKeepTheirBits) {
  const std::vector<Shard> tensors = {{{1}, {0}},    {{4097}, {9}},        {{0, 5}, {3, 0}}, {{129, 65}, {2, 3}},
                                      {{3}, {1021}}, {{30000, 2}, {0, 0}}, {{127}, {0}}};
  for (int decaying : {0, 3, 7}) {
    Case c = RoundedCase(tensors, decaying);
    c.inputs[4 + 4 * 1 + 3] = c.inputs[4 + 4 * 1 + 3].Shifted(1);  // not aligned to 16 bytes
    c.outputs[3 * 3 + 1] = c.outputs[3 * 3 + 1].Shifted(3);
    Check(c, SumBound(8, 1));
    const std::vector<OwnedTensor> together = c.Tested();
    for (size_t t = 0; t < tensors.size(); ++t) {
      Case one = c;
      const auto at = static_cast<long>(t);
      one.inputs.assign(c.inputs.begin(), c.inputs.begin() + 4);
      one.inputs.insert(one.inputs.end(), c.inputs.begin() + 4 + 4 * at, c.inputs.begin() + 8 + 4 * at);
      one.outputs.assign(c.outputs.begin() + 3 * at, c.outputs.begin() + 3 + 3 * at);
      one.attributes.numbers["decaying"] = at < decaying ? 1 : 0;
      one.attributes.texts["rounding"] = c.attributes.texts["rounding"].substr(16 * t, 16);
      const std::vector<OwnedTensor> alone = one.Tested();
      for (size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(together[3 * t + i].SameBits(alone[i])) << "tensor " << t << " output " << i;
    }
  }
}

// More tensors than one launch takes.
TEST(KernelsRounding, HundredsOfTensors) {
  std::vector<Shard> tensors;
  for (int64_t t = 0; t < 1000; ++t) tensors.push_back({{t % 30 == 0 ? t % 7 : 0}, {t}});  // most of them empty shards
  const Case c = RoundedCase(tensors, 500);
  Check(c, SumBound(8, 1));
}

double Mean(const OwnedTensor& x) {
  double sum = 0;
  for (int64_t i = 0; i < x.Count(); ++i) sum += x[i];
  return sum / static_cast<double>(x.Count());
}

// The second moment of a parameter without further gradients decays correctly in the mean. Rounded to nearest it would
// stay 1 for ever.
TEST(KernelsRounding, ASecondMomentDecaysInTheMean) {
  constexpr int64_t kElements = 4096;
  constexpr int kSteps = 300;
  constexpr float kBeta = 0.999f;
  Case c = RoundedCase({{{kElements}, {0}}}, 0);
  c.attributes.numbers["beta2"] = kBeta;
  Fill(c.inputs[7], 0);
  Fill(c.outputs[2], 1);
  for (int step = 1; step <= kSteps; ++step) {
    c.inputs[1].Set(0, step);
    c.outputs = c.Tested();
  }
  // The deviation of an element is at most sqrt(kSteps p (1 - p)) / 256 with p = 0.256, the deviation of the mean 1/64
  // of it.
  EXPECT_NEAR(Mean(c.outputs[2]), std::pow(kBeta, kSteps), 6 * std::sqrt(kSteps * 0.19) / 256 / 64);
  EXPECT_EQ(ToFloat(ToBf16(kBeta * 1.0f)), 1.0f) << "to nearest";
}

// Rounding up has the probability of the distance, for any moment, row, column and step.
TEST(KernelsRounding, IsEven) {
  constexpr int64_t kRows = 64, kColumns = 1024;
  for (double share : {0.1, 0.5, 0.9}) {
    Case c = RoundedCase({{{kRows, kColumns}, {0, 0}}}, 0);
    c.attributes.numbers["beta1"] = 0;  // the first moment is the gradient
    c.attributes.numbers["beta2"] = 0;  // the second is its square
    c.inputs[2].Set(0, 1);
    const double x = 1 + share / 128;
    Fill(c.inputs[7], x);
    Fill(c.outputs[1], 0);
    const std::vector<OwnedTensor> results = c.Tested();
    const double deviation = std::sqrt(share * (1 - share) / (kRows * kColumns));
    EXPECT_NEAR((Mean(results[1]) - 1) * 128, share, 5 * deviation);
    const double square = std::fmod((x * x - 1) * 128, 1.0), below = std::floor((x * x - 1) * 128);
    EXPECT_NEAR((Mean(results[2]) - 1) * 128 - below, square,
                5 * std::sqrt(square * (1 - square) / (kRows * kColumns)) + 1e-4);
    int64_t both = 0;
    double up[2] = {};
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      const bool first = results[1][i] > 1, second = results[2][i] > 1 + below / 128;
      both += first && second ? 1 : 0;
      up[0] += first ? 1 : 0;
      up[1] += second ? 1 : 0;
    }
    const double n = kRows * kColumns;
    EXPECT_NEAR(static_cast<double>(both) / n, up[0] / n * up[1] / n, 5 * 0.25 / std::sqrt(n)) << "of two moments";
    c.inputs[1].Set(0, 8);
    EXPECT_FALSE(c.Tested()[1].SameBits(results[1])) << "of two steps";
    c.inputs[1].Set(0, 7);
    c.attributes.texts["rounding"] = Hex(KeyOf(1));
    EXPECT_FALSE(c.Tested()[1].SameBits(results[1])) << "of two parameters";
  }
}

TEST(KernelsRounding, NoMomentIsRoundedWithoutAKey) {
  Case c = RoundedCase({{{5}, {0}}, {{7}, {0}}}, 1);
  c.attributes.texts["rounding"].resize(31);
  EXPECT_THROW(c.Reference(), InvariantError);
  EXPECT_THROW(c.Tested(), InvariantError);
}

TEST(KernelsRounding, NothingIsWrittenUnlessItApplies) {
  const Case c = RoundedCase({{{65}, {0}}, {{50, 100}, {0, 0}}}, 1, 0);
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()})
    for (size_t o = 0; o < results.size(); ++o) EXPECT_TRUE(results[o].SameBits(c.outputs[o]));
}

TEST(KernelsRounding, WhatIsNotFiniteStays) {
  Case c = RoundedCase({{{40}, {0}}}, 0);
  c.outputs[1].Set(20, std::nan(""));
  for (int64_t i : {3, 17}) c.outputs[2].Set(i, kInfinity);
  c.outputs[2].Set(21, std::nan(""));
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()}) {
    EXPECT_TRUE(std::isnan(results[1][20]));
    EXPECT_EQ(results[2][3], kInfinity);
    EXPECT_EQ(results[2][17], kInfinity);
    EXPECT_TRUE(std::isnan(results[2][21]));
    for (int64_t i : {4, 19, 22})
      for (size_t moment : {1, 2}) EXPECT_TRUE(std::isfinite(results[moment][i]));
  }
}

/// Muon's momentum of bf16, updated in place.
Case DirectionCase(const Shard& shard, bool nesterov, double apply = 1) {
  Random random(5);
  const OwnedTensor momentum = random.Real(kBf16, shard.shape, -1, 1, shard.start);
  const auto scalar = [&](double x) { return random.Real(kF32, {}, x, x); };
  return {"muon_direction",
          {scalar(0.013), scalar(apply), momentum, random.Real(kF32, shard.shape, -50, 50, shard.start), scalar(9)},
          {momentum, OwnedTensor(kF32, shard.shape, shard.start)},
          {{{"beta", 0.9}, {"nesterov", nesterov ? 1.0 : 0.0}}, {{"rounding", Hex(KeyOf(0))}}}};
}

TEST(KernelsRounding, MuonsMomentum) {
  for (const Shard& shard : kShards) {
    if (shard.shape.size() < 2) continue;
    for (bool nesterov : {false, true}) {
      const Case c = DirectionCase(shard, nesterov);
      Check(c, SumBound(8, 1));
      CheckInPlace(c, 1, 3);
      ExpectSameRounding(c.Tested()[0], c.Reference()[0]);
    }
  }
  ExpectEqualOnBoxes(DirectionCase({{61, 70}, {0, 0}}, true));
}

TEST(KernelsRounding, MuonsMomentumStaysUnlessTheStepApplies) {
  Case c = DirectionCase({{100, 30}, {0, 0}}, true, 0);
  c.inputs[3].Set(7, kInfinity);
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()}) {
    EXPECT_TRUE(results[0].SameBits(c.inputs[2]));
    for (int64_t i = 0; i < results[1].Count(); ++i) ASSERT_EQ(results[1][i], c.inputs[2][i]);
  }
}

}  // namespace
}  // namespace espalier::testing
