// Mixtures of experts: routing, and the losses of routers.
#include <algorithm>
#include <set>

#include "experts_testing.hpp"

namespace espalier::testing {
namespace {

Attributes RouterOf(bool sigmoid, bool normalize, int64_t per_token, double scale = 2.5) {
  return {{{"per_token", double(per_token)}, {"normalize", normalize ? 1 : 0}, {"scale", scale}},
          {{"scores", sigmoid ? "sigmoid" : "softmax"}}};
}

/// Calls f(sigmoid, normalize).
template <typename F>
void ForRouters(F f) {
  for (bool sigmoid : {false, true})
    for (bool normalize : {false, true}) f(sigmoid, normalize);
}

Case RouteCase(const OwnedTensor& logits, const Attributes& router) {
  const int64_t per_token = router.Integer("per_token"), b = logits.shape()[0], s = logits.shape()[1];
  return {"route", {logits}, {OwnedTensor(kF32, {b, s, per_token}), OwnedTensor(kI32, {b, s, per_token})}, router};
}

struct Choice {
  int64_t experts, per_token;
};

TEST_P(Kernels, Route) {
  for (const auto& [experts, per_token] :
       {Choice{1, 1}, {5, 5}, {7, 2}, {64, 8}, {131, 3}, {70, 70}, {2053, 33}, {4, 0}}) {
    ForRouters([&](bool sigmoid, bool normalize) {
      const OwnedTensor logits = Real({3, 7, experts}, -6, 6);
      const Attributes router = RouterOf(sigmoid, normalize, per_token);
      const Case c = RouteCase(logits, router);
      Check(c, SumBound(experts, 2.5));
      Check(Shifted(c), SumBound(experts, 2.5));
      const Case grad{"route_grad", {logits, c.Reference()[1], F32({3, 7, per_token})}, {Real(logits.shape())}, router};
      Check(grad, SumBound(experts + 8, 5));
      Check(Shifted(grad), SumBound(experts + 8, 5));
    });
  }
}

// Among equal logits the lower number is first; 0 and -0 are equal.
TEST_P(Kernels, RouteOfEqualLogits) {
  OwnedTensor logits = Empty(T(), {2, 3, 45});
  for (int64_t i = 0; i < logits.Count(); ++i) logits.Set(i, i / 45 == 0 ? (i % 2 == 0 ? 0.0 : -0.0) : double(i % 3));
  const Case c = RouteCase(logits, RouterOf(false, false, 45));
  Check(c, SumBound(45, 2.5));
  const OwnedTensor chosen = c.Tested()[1];
  for (int64_t i = 0; i < 45; ++i) {
    EXPECT_EQ(chosen[i], i);
    EXPECT_EQ(chosen[45 + i], 3 * (i % 15) + 2 - i / 15);
  }
}

// DeepSeek's choice: by score and bias, from the groups whose highest scores have the largest sums.
TEST_P(Kernels, RouteWithGroupsAndBias) {
  struct Groups {
    int64_t experts, groups, top_groups, per_token, best = 2;
  };
  for (const auto& [experts, groups, top_groups, per_token, best] : {Groups{12, 4, 2, 3},
                                                                     {256, 8, 4, 8},
                                                                     {9, 9, 5, 5},
                                                                     {130, 65 - 52, 7, 11},
                                                                     {14, 1, 1, 6},
                                                                     {64, 64, 9, 9},
                                                                     {12, 4, 2, 3, 1},
                                                                     {160, 8, 3, 6, 1},
                                                                     {9, 9, 5, 5, 1}}) {
    for (bool bias : {true, false}) {
      Attributes router = RouterOf(true, true, per_token);
      router.numbers.insert(
          {{"groups", double(groups)}, {"top_groups", double(top_groups)}, {"group_best", double(best)}});
      Case c = RouteCase(Real({3, 5, experts}, -4, 4), router);
      if (bias) c.inputs.push_back(F32({experts}, -0.3, 0.3));
      Check(c, SumBound(experts, 2.5));
      const OwnedTensor chosen = c.Tested()[1];
      for (int64_t t = 0; t < 15; ++t) {
        std::set<int64_t> used;
        for (int64_t i = 0; i < per_token; ++i) used.insert(int64_t(chosen[t * per_token + i]) / (experts / groups));
        EXPECT_LE(std::ssize(used), top_groups);
      }
    }
  }
}

// Positions choose in place of the scores, which the weights still follow.
TEST_P(Kernels, RouteByPosition) {
  struct Sizes {
    int64_t batch, length, experts, per_token;
  };
  for (const auto& [batch, length, experts, per_token] : {Sizes{2, 7, 5, 3}, {3, 1, 4, 4}, {1, 33, 70, 40}})
    for (bool bias : {true, false}) {
      Attributes router = RouterOf(true, true, per_token);
      router.numbers["balanced"] = 1;
      Case c = RouteCase(Real({batch, length, experts}, -4, 4), router);
      if (bias) c.inputs.push_back(F32({experts}, -0.3, 0.3));
      OwnedTensor positions(Dtype::kI32, {length});
      for (int64_t s = 0; s < length; ++s) positions.Set(s, double(11 + 3 * s));
      c.inputs.push_back(positions);
      Check(c, SumBound(experts, 2.5));
      const OwnedTensor chosen = c.Tested()[1];
      for (int64_t t = 0; t < batch * length; ++t)
        for (int64_t i = 0; i < per_token; ++i)
          EXPECT_EQ(chosen[t * per_token + i], double(((11 + 3 * (t % length)) * per_token + i) % experts));
    }
}

// Group 1 has the highest expert, group 0 the largest sum of two.
TEST(KernelsRoute, GroupsRankByTheirHighest) {
  OwnedTensor logits(kF32, {1, 1, 4}), bias(kF32, {4});
  const double values[] = {1.0, 0.9, 2.0, -3.0};
  for (int64_t e = 0; e < 4; ++e) logits.Set(e, values[e]);
  Attributes router = RouterOf(true, true, 1, 1);
  router.numbers.insert({{"groups", 2}, {"top_groups", 1}});
  Case c = RouteCase(logits, router);
  EXPECT_EQ(c.Tested()[1][0], 0);
  c.inputs.push_back(bias);
  EXPECT_EQ(c.Tested()[1][0], 0);
  c.inputs[1].Set(1, 0.5);  // a bias moves the choice, not the weight
  EXPECT_EQ(c.Tested()[1][0], 1);
  EXPECT_FLOAT_EQ(c.Tested()[0][0], 1);
  c.inputs[1].Set(1, 0);
  c.attributes.numbers["group_best"] = 1;
  EXPECT_EQ(c.Tested()[1][0], 2);
}

TEST(KernelsRoute, ExpertLoadCountsAndBiasesFollow) {
  Random random;
  const OwnedTensor chosen = ChosenExperts(random, {3, 17, 2}, 7, Routing::kAny);
  for (bool accumulate : {false, true})
    Check({"expert_load", {chosen}, {random.Real(kF32, {7}, 0, 9)}, {{{"experts", 7}}, {}}, accumulate}, 0);
  const double loads[] = {4, 0, 7, 3, 1}, expected[] = {-0.25, 0.25, -0.25, 0, 0.25};  // the mean is 3
  for (double apply : {0.0, 1.0}) {
    Case c{"bias_update", {random.Real(kF32, {}, apply, apply), OwnedTensor(kF32, {5}), OwnedTensor(kF32, {5})}, {}};
    c.attributes.numbers["rate"] = 0.25;
    for (int64_t e = 0; e < 5; ++e) c.inputs[2].Set(e, loads[e]);
    c.outputs = {random.Real(kF32, {5}, 1, 1)};
    const OwnedTensor bias = c.Tested()[0];
    for (int64_t e = 0; e < 5; ++e) EXPECT_EQ(bias[e], 1 + apply * expected[e]);
    Check(c, 0);
  }
}

TEST(KernelsRoute, ConcatenateKeepsTheOrderOfInputs) {
  Random random;
  const Case c{"concatenate",
               {random.Real(kF32, {13}, -9, 9), random.Real(kF32, {}, -9, 9), random.Real(kF32, {3, 701}, -9, 9)},
               {OwnedTensor(kF32, {13 + 1 + 3 * 701})}};
  Check(c, 0);
  const OwnedTensor y = c.Tested()[0];
  int64_t at = 0;
  for (const OwnedTensor& input : c.inputs)
    for (int64_t i = 0; i < input.Count(); ++i) EXPECT_EQ(y[at++], input[i]);
}

// A NaN is below all numbers, and no expert is chosen twice.
TEST_P(Kernels, RouteOfExtremeLogits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const double rows[5][6] = {{kNan, 1, -kInfinity, kInfinity, kNan, 2},
                             {kNan, kNan, kNan, kNan, kNan, kNan},
                             {-kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity},
                             {3e38, -3e38, 1, 2, -1e-40, 1e-40},
                             {kInfinity, kInfinity, kNan, 0, kInfinity, -kInfinity}};
  OwnedTensor logits = Empty(T(), {1, 5, 6});
  for (int64_t i = 0; i < logits.Count(); ++i) logits.Set(i, rows[i / 6][i % 6]);
  const double firsts[5] = {3, 0, 0, 0, 0}, lasts[5] = {4, 5, 5, 1, 2};
  for (int64_t per_token : {1, 4, 6}) {
    ForRouters([&](bool sigmoid, bool normalize) {
      const Case c = RouteCase(logits, RouterOf(sigmoid, normalize, per_token));
      const OwnedTensor chosen = c.Tested()[1];
      EXPECT_TRUE(chosen.SameBits(c.Reference()[1]));
      for (int64_t t = 0; t < 5; ++t) {
        EXPECT_EQ(chosen[t * per_token], firsts[t]);
        EXPECT_TRUE(per_token < 6 || chosen[t * 6 + 5] == lasts[t]);
      }
      Case{"route_grad", {logits, chosen, F32(chosen.shape())}, {logits}, c.attributes}.Tested();
    });
  }
}

// Central differences of the reference's weights.
TEST(KernelsRoute, GradientIsTheDerivativeOfTheWeights) {
  ForRouters([&](bool sigmoid, bool normalize) {
    Random random;
    const OwnedTensor logits = random.Real(kF32, {1, 3, 7}, -2, 2), dweights = random.Real(kF32, {1, 3, 4});
    const Attributes router = RouterOf(sigmoid, normalize, 4, 1.5);
    const auto sum = [&](int64_t moved, float by) {
      OwnedTensor there = logits;
      there.Set(moved, logits[moved] + by);
      const OwnedTensor weights = RouteCase(there, router).Reference()[0];
      double total = 0;
      for (int64_t i = 0; i < weights.Count(); ++i) total += weights[i] * dweights[i];
      return total;
    };
    const Case grad{"route_grad",
                    {logits, RouteCase(logits, router).Tested()[1], dweights},
                    {OwnedTensor(kF32, logits.shape())},
                    router};
    const OwnedTensor gradient = grad.Tested()[0];
    constexpr float kStep = 1.0f / 256;
    for (int64_t i = 0; i < logits.Count(); ++i)
      EXPECT_NEAR(gradient[i], (sum(i, kStep) - sum(i, -kStep)) / (2 * kStep), 1e-4) << i << sigmoid << normalize;
  });
}

TEST_P(Kernels, RouterLosses) {
  for (const Tokens& t : {Tokens{1, 1, 1, 1, 0}, {2, 9, 5, 5, 0}, {3, 131, 7, 2, 0}, {2, 5, 1063, 3, 0}}) {
    for (const char* scores : {"softmax", "sigmoid"}) {
      const OwnedTensor logits = Real({t.b, t.s, t.experts}, -6, 6), by_expert = F32({t.b, t.experts}, 0, 9);
      const Attributes attributes{{{"balance", 0.01}, {"z_loss", 0.003}}, {{"scores", scores}}};
      const Case c{"balance",
                   {logits, ChosenExperts(random_, {t.b, t.s, t.per_token}, t.experts, Routing::kEven)},
                   {by_expert, by_expert, F32({t.b})},
                   attributes};
      Check(c, SumBound(t.s + t.experts, 64));
      Check(Shifted(c), SumBound(t.s + t.experts, 64));
      const Case grad{"balance_grad", {logits, by_expert}, {logits}, attributes};
      Check(grad, SumBound(t.experts, 0.2));
      Check(Shifted(grad), SumBound(t.experts, 0.2));
      for (bool accumulate : {false, true})
        Check({"router_loss", c.Reference(), {F32({}), F32({})}, attributes, accumulate}, SumBound(0, 4));
    }
  }
}

// For equal logits it is the log of the number of experts, and 0 where one expert has all of the score.
TEST_P(Kernels, RouterEntropy) {
  for (const Tokens& t : {Tokens{1, 1, 1, 1, 0}, {2, 9, 5, 5, 0}, {3, 131, 7, 2, 0}, {2, 5, 1063, 3, 0}})
    for (const char* scores : {"softmax", "sigmoid"})
      for (bool accumulate : {false, true}) {
        const Case c{
            "router_entropy", {Real({t.b, t.s, t.experts}, -6, 6)}, {F32({})}, {{}, {{"scores", scores}}}, accumulate};
        Check(c, SumBound(t.experts, double(t.b * t.s) * std::log(double(t.experts) + 1)));
        Check(Shifted(c), SumBound(t.experts, double(t.b * t.s) * std::log(double(t.experts) + 1)));
      }
  Case c{"router_entropy", {Real({1, 3, 64}, 2, 2)}, {F32({})}, {{}, {{"scores", "softmax"}}}};
  EXPECT_NEAR(c.Tested()[0][0], 3 * std::log(64), 1e-5);
  for (const char* scores : {"softmax", "sigmoid"}) {
    c.attributes.texts["scores"] = scores;
    c.inputs = {Real({1, 1, 64}, -300, -300)};
    if (scores[1] == 'o') EXPECT_NEAR(c.Tested()[0][0], std::log(64), 1e-5);
    c.inputs[0].Set(5, 300);
    EXPECT_NEAR(c.Tested()[0][0], 0, 1e-6) << scores;
  }
}

TEST_P(Kernels, RoutersOfEmptyExtents) {
  for (const Tokens& t : {Tokens{0, 3, 4, 2, 8}, {2, 0, 4, 2, 8}, {2, 3, 4, 0, 8}, {0, 0, 4, 0, 0}}) {
    const OwnedTensor chosen = ChosenExperts(random_, {t.b, t.s, t.per_token}, t.experts, Routing::kAny);
    Check(RouteCase(Real({t.b, t.s, t.experts}), RouterOf(false, true, t.per_token)), SumBound(8, 2.5));
    const Attributes losses{{{"balance", 0.01}, {"z_loss", 0.003}}, {{"scores", "softmax"}}};
    const OwnedTensor logits = Real({t.b, t.s, t.experts}), by_expert = F32({t.b, t.experts});
    Check({"balance", {logits, chosen}, {by_expert, by_expert, F32({t.b})}, losses}, SumBound(64, 4));
    Check({"balance_grad", {logits, by_expert}, {logits}, losses}, SumBound(8, 1));
    Check({"router_loss", {by_expert, by_expert, F32({t.b})}, {F32({}), F32({})}, losses, true}, SumBound(8, 1));
    Check({"router_entropy", {logits}, {F32({})}, losses, true}, SumBound(8, 8));
  }
}

}  // namespace
}  // namespace espalier::testing
