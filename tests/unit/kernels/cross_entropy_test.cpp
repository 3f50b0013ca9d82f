// Softmax cross-entropy in the steps that a sharded vocabulary needs.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

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

/// One op that finds the maximum itself, against two: bitwise.
TEST_P(Kernels, LogitsSumFindsTheMaximum) {
  for (int64_t width : {1, 17, 127, 5003}) {
    const Case two = LogitsCase(random_, T(), width, "logits_sum");
    const Case one{"logits_sum", {two.inputs[0], two.inputs[2]}, {F32({2, 9}), F32({2, 9}), F32({2, 9})}};
    Check(one, SumBound(64, 1) * two.Reference()[0].Largest());
    const std::vector<OwnedTensor> fused = one.Tested(), sums = two.Tested();
    EXPECT_TRUE(fused[0].SameBits(sums[0]) && fused[1].SameBits(sums[1]) && fused[2].SameBits(two.inputs[1]));
  }
}

/// One op for the sum and the gradient, against two: bitwise, in place and in separate memory, with and without a
/// z-loss and a weight. Rows of 60013 do not fit into a multiprocessor's shared memory.
TEST_P(Kernels, LossWithItsGradientIsTheTwoOps) {
  for (int64_t width : {1, 17, 127, 5003, 60013}) {
    for (const auto& [z_loss, weight] : {std::pair{0.0, 1.0}, {0.3, 1.0}, {0.0, 0.15}, {0.3, 0.15}}) {
      const Attributes attributes{{{"z_loss", z_loss}, {"weight", weight}}, {}};
      const Case sum = LogitsCase(random_, T(), width, "logits_sum");
      const Case one{"cross_entropy",
                     {sum.inputs[0], sum.inputs[2]},
                     {F32({2, 9}), F32({2, 9}), F32({2, 9}), Empty(T(), {2, 9, width})},
                     attributes};
      if (width < 60013) Check(one, SumBound(64, 1) * sum.Reference()[0].Largest());
      CheckInPlace(one, 3, 0);
      const std::vector<OwnedTensor> fused = one.Tested(), sums = sum.Tested();
      const Case grad{"cross_entropy_grad",
                      {sum.inputs[0], sum.inputs[1], sums[0], sum.inputs[2]},
                      {Empty(T(), {2, 9, width})},
                      attributes};
      EXPECT_TRUE(fused[0].SameBits(sums[0]) && fused[1].SameBits(sums[1]) && fused[2].SameBits(sum.inputs[1]));
      EXPECT_TRUE(fused[3].SameBits(grad.Tested()[0])) << width << ", " << z_loss << ", " << weight;
    }
  }
}

/// The rows of a case twice: with unchanged logits, and with logits so large that log Z is far from 0.
TEST_P(Kernels, ZLoss) {
  for (int64_t width : {1, 17, 127, 5003}) {
    for (double c : {1e-4, 0.3}) {
      const Case sum = LogitsCase(random_, T(), width, "logits_sum");
      const std::vector<OwnedTensor> sums = sum.Reference();
      const Attributes attributes{{{"z_loss", c}, {"weight", 0.7}}, {}};
      const Case grad{"cross_entropy_grad",
                      {sum.inputs[0], sum.inputs[1], sums[0], sum.inputs[2]},
                      {Empty(T(), {2, 9, width})},
                      attributes};
      Check(grad, SumBound(4, 8));
      CheckInPlace(grad, 0, 0);
      for (bool accumulate : {false, true})
        Check({"token_loss",
               {sum.inputs[1], sums[0], sums[1], sum.inputs[2]},
               {F32({}), F32({}), F32({})},
               attributes,
               accumulate},
              SumBound(0, 2000));
    }
  }
}

/// The gradient is the derivative of the loss: central differences of the reference in fp64.
TEST(KernelsCrossEntropy, GradientOfTheWeightedZLossIsItsDerivative) {
  Random random;
  const double c = 0.05, weight = 0.3;
  const Attributes attributes{{{"z_loss", c}, {"weight", weight}}, {}};
  const OwnedTensor logits = random.Real(kF32, {1, 3, 7}, 2, 6);
  const OwnedTensor targets = random.Integer({1, 3}, 0, 6);
  const auto loss = [&](int64_t moved, double by) {
    double sum = 0;
    for (int64_t r = 0; r < 3; ++r) {
      double z = 0;
      const auto at = [&](int64_t i) { return logits[r * 7 + i] + (r * 7 + i == moved ? by : 0.0); };
      for (int64_t v = 0; v < 7; ++v) z += std::exp(at(v));
      sum += weight * (std::log(z) - at(static_cast<int64_t>(targets[r])) + c * std::log(z) * std::log(z));
    }
    return sum;
  };
  const OwnedTensor largest = Case{"logits_max", {logits}, {OwnedTensor(kF32, {1, 3})}}.Tested()[0];
  const Case sum{"logits_sum", {logits, largest, targets}, {OwnedTensor(kF32, {1, 3}), OwnedTensor(kF32, {1, 3})}};
  const OwnedTensor gradient =
      Case{
          "cross_entropy_grad", {logits, largest, sum.Tested()[0], targets}, {OwnedTensor(kF32, {1, 3, 7})}, attributes}
          .Tested()[0];
  for (int64_t i = 0; i < 21; ++i) EXPECT_NEAR(gradient[i], (loss(i, 1e-5) - loss(i, -1e-5)) / 2e-5, 1e-5) << i;
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

}  // namespace
}  // namespace espalier::testing
