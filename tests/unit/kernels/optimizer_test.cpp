// Ops that run once per step: accumulation, norm and clipping, AdamW.
#include "copy_cases.hpp"
#include "fixture.hpp"

namespace espalier::testing {
namespace {

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

TEST(KernelsOptimizer, ClipOfAStepWithoutTargetsAppliesNothing) {
  Random random;
  Case c{"clip", {}, std::vector(5, OwnedTensor(kF32, {})), {{{"clip_norm", 0.5}}, {}}};
  for (double x : {0.0, 0.0, 0.0}) c.inputs.push_back(random.Real(kF32, {}, x, x));
  const std::vector<OwnedTensor> r = c.Tested();
  for (const size_t result : {0, 1, 3}) EXPECT_EQ(r[result][0], 0) << "mean loss, norm and apply";
  EXPECT_TRUE(std::isfinite(r[2][0]));
  Check(c, 0);
}

TEST(KernelsOptimizer, Mean) {
  Random random;
  for (int terms : {1, 2, 300}) {  // 300: several launches on a GPU
    Case c{"mean", {random.Real(kF32, {}, 33, 33)}, {OwnedTensor(kF32, {})}};
    for (int i = 0; i < terms; ++i) c.inputs.push_back(random.Real(kF32, {}, 4.5 + i, 4.5 + i));
    EXPECT_FLOAT_EQ(c.Tested()[0][0], terms * (4.5 + (terms - 1) / 2.0) / 33);
    Check(c, 0);
  }
  Case none{"mean", {random.Real(kF32, {}, 0, 0), random.Real(kF32, {}, 0, 0)}, {OwnedTensor(kF32, {})}};
  EXPECT_EQ(none.Tested()[0][0], 0) << "no tokens were counted";
}

TEST(KernelsOptimizer, ClipAppliesWithinTheLimits) {
  Random random;
  const float mean = 100.0f / 33, norm = static_cast<float>(std::sqrt(703.0) / 33);
  const auto applies = [&](float loss_limit, float norm_limit, double loss) {
    Case c{"clip", {}, std::vector(5, OwnedTensor(kF32, {})), {{{"clip_norm", 0.5}, {"limits", 1}}, {}}};
    for (double x : {loss, 33.0, double(loss_limit), double(norm_limit), 700.0, 3.0}) {
      c.inputs.emplace_back(kF32, Shape{});
      c.inputs.back().Set(0, x);
    }
    EXPECT_EQ(c.Reference()[3][0], c.Tested()[3][0]);
    EXPECT_FLOAT_EQ(c.Tested()[1][0], norm);
    return c.Tested()[3][0];
  };
  EXPECT_EQ(applies(mean, norm, 100), 1) << "the limits themselves are allowed";
  EXPECT_EQ(applies(std::nextafter(mean, 0.0f), norm, 100), 0);
  EXPECT_EQ(applies(mean, std::nextafter(norm, 0.0f), 100), 0);
  EXPECT_EQ(applies(kInfinity, kInfinity, 100), 1);
  EXPECT_EQ(applies(kInfinity, kInfinity, kInfinity), 0);
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
      CheckPieces(c);
    }
  }
}

TEST(KernelsOptimizer, AdamwWithAFactorOfTheRate) {
  Case c = AdamwCase({40001}, 1);
  for (double factor : {0.0, 0.3, 7.0}) {
    c.attributes.numbers["lr_factor"] = factor;
    Check(c, SumBound(8, 1));
    Case other_rate = AdamwCase({40001}, 1);
    other_rate.inputs[0].Set(0, 3e-2 * factor);
    EXPECT_NEAR(c.Tested()[0][40000], other_rate.Tested()[0][40000], 1e-6);
  }
}

// However tensors are split among threads and blocks, an element has the bits that its tensor has alone.
TEST(KernelsOptimizer, AdamwOfManyTensors) {
  const std::vector<int64_t> tensors = {1, 4097, 0, 17, 40001, 3, 4096, 16385, 127};
  for (int decaying : {0, 4, 9}) {
    Case c = AdamwCase(tensors, decaying);
    c.inputs[4] = c.inputs[4].Shifted(1);  // tensors that are not aligned to 16 bytes
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
  for (int64_t t = 0; t < 1500; ++t) tensors.push_back(t % 30 == 0 ? t % 7 : 0);  // most of them empty shards
  for (int decaying : {700, 1400}) Check(AdamwCase(tensors, decaying), SumBound(8, 1));
}

TEST(KernelsOptimizer, AdamwWritesTheRoundedMasterAsWell) {
  Case c = AdamwCase({1, 4097, 0, 17, 40001, 127}, 3);
  CheckCopies(c, 3);
  CheckCopiesStay(AdamwCase({65, 5000}, 1, 0), 3);
  Case unaligned = WithCopies(c, 3);
  unaligned.outputs[4 * 4 + 3] = unaligned.outputs[4 * 4 + 3].Shifted(3);
  EXPECT_TRUE(unaligned.Tested()[4 * 4 + 3].SameBits(WithCopies(c, 3).Tested()[4 * 4 + 3]));
}

TEST(KernelsOptimizer, AdamwWritesNothingUnlessItApplies) {
  const Case c = AdamwCase({65, 5000}, 1, 0);
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()}) {
    for (size_t o = 0; o < results.size(); ++o) EXPECT_TRUE(results[o].SameBits(c.outputs[o]));
  }
}

}  // namespace
}  // namespace espalier::testing
