// Mixtures of experts: routing, rows of experts, their matmuls and gates.
#include <algorithm>
#include <set>

#include "fixture.hpp"

namespace espalier::testing {
namespace {

constexpr Dtype kI32 = Dtype::kI32;

/// Which experts have rows: all, by chance; the first ones have all; every other one.
enum class Routing : uint8_t { kAny, kFirst, kEven };
constexpr Routing kRoutings[] = {Routing::kAny, Routing::kFirst, Routing::kEven};

/// Different experts for each token, i32[b,s,k].
OwnedTensor ChosenExperts(Random& random, Shape shape, int64_t experts, Routing routing) {
  const int64_t per_token = shape.at(2), step = routing == Routing::kEven && 2 * per_token <= experts ? 2 : 1;
  OwnedTensor chosen(kI32, shape);
  const OwnedTensor draws = random.Integer({chosen.Count()}, 0, 1 << 30);
  std::vector<int64_t> all;
  for (int64_t e = 0; e < experts; e += step) all.push_back(e);
  for (int64_t i = 0; i < chosen.Count(); ++i) {
    const int64_t at = i % per_token, left = routing == Routing::kFirst ? per_token - at : std::ssize(all) - at;
    std::swap(all[size_t(at)], all[size_t(at + int64_t(draws[i]) % left)]);
    chosen.Set(i, double(all[size_t(at)]));
  }
  return chosen;
}

/// The experts of rows in ascending order, in this shape.
OwnedTensor ExpertsOfRows(const OwnedTensor& chosen) {
  std::vector<double> experts;
  for (int64_t i = 0; i < chosen.Count(); ++i) experts.push_back(chosen[i]);
  std::sort(experts.begin(), experts.end());
  OwnedTensor rows(kI32, chosen.shape());
  for (int64_t i = 0; i < rows.Count(); ++i) rows.Set(i, experts[size_t(i)]);
  return rows;
}

/// The same case with all tensors one element after a multiple of 16 bytes.
Case Shifted(Case c) {
  for (std::vector<OwnedTensor>* tensors : {&c.inputs, &c.outputs})
    for (OwnedTensor& x : *tensors) x = x.Shifted(1);
  return c;
}

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

// Of equal logits the lower number is first; 0 and -0 are equal.
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

// DeepSeek-V3's choice: by score and bias, from the groups whose two highest sums are the largest.
TEST_P(Kernels, RouteWithGroupsAndBias) {
  struct Groups {
    int64_t experts, groups, top_groups, per_token;
  };
  for (const auto& [experts, groups, top_groups, per_token] :
       {Groups{12, 4, 2, 3}, {256, 8, 4, 8}, {9, 9, 5, 5}, {130, 65 - 52, 7, 11}, {14, 1, 1, 6}, {64, 64, 9, 9}}) {
    for (bool bias : {true, false}) {
      Attributes router = RouterOf(true, true, per_token);
      router.numbers.insert({{"groups", double(groups)}, {"top_groups", double(top_groups)}});
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

// The two highest of a group count: group 1 has the highest expert, group 0 the largest sum.
TEST(KernelsRoute, GroupsRankByTheirTwoHighest) {
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

struct Tokens {
  int64_t b, s, experts, per_token, width;
};

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

// Few and many slots and experts, more than a block takes at a time.
TEST_P(Kernels, RowsOfExperts) {
  for (const Tokens& t : {Tokens{1, 1, 1, 1, 1},
                          {2, 9, 5, 5, 17},
                          {3, 11, 7, 2, 64},
                          {2, 65, 2053, 3, 3},
                          {5, 601, 13, 6, 1},
                          {1, 97, 16, 8, 1032}}) {
    for (Routing routing : kRoutings) {
      const Shape slots = {t.b, t.s, t.per_token}, rows = {t.b, t.s, t.per_token, t.width};
      const OwnedTensor x = Real({t.b, t.s, t.width}), ints(kI32, slots);
      const Case c{"dispatch",
                   {x, ChosenExperts(random_, slots, t.experts, routing), F32(slots)},
                   {Real(rows), F32(slots), ints, ints},
                   {{{"experts", double(t.experts)}}, {}}};
      Check(c, 0);
      Check(Shifted(c), 0);
      const OwnedTensor places = c.Reference()[3];
      for (const Case& d : {Case{"combine", {Real(rows), places}, {x}}, Case{"combine_grad", {x, places}, {Real(rows)}},
                            Case{"dispatch_grad", {Real(rows), F32(slots), places}, {x, F32(slots)}}}) {
        Check(d, SumBound(t.per_token, 1));
        Check(Shifted(d), SumBound(t.per_token, 1));
      }
      if (HasFatalFailure()) return;
    }
  }
}

struct Grouped {
  int64_t b, s, experts, per_token, out, in;
};

/// The three products with random operands: y, dx and dW.
std::vector<Case> GroupedCases(Random& random, Dtype type, const Grouped& g, const OwnedTensor& of_rows) {
  const OwnedTensor x = random.Real(type, {g.b, g.s, g.per_token, g.in}),
                    dy = random.Real(type, {g.b, g.s, g.per_token, g.out}),
                    weight = random.Real(type, {g.experts, g.out, g.in}),
                    dweight = random.Real(kF32, {g.experts, g.out, g.in});
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const auto of_weights = [&](bool accumulate) {
    return Case{"grouped_matmul", {dy, x, of_rows}, {dweight}, spec("bsrn,bsrk->enk"), accumulate};
  };
  return {{"grouped_matmul", {x, weight, of_rows}, {dy}, spec("bsrk,enk->bsrn")},
          {"grouped_matmul", {dy, weight, of_rows}, {x}, spec("bsrn,enk->bsrk")},
          of_weights(false),
          of_weights(true)};
}

// Rows of whole packs and others; one tile and several, of rows, of columns and along the contracted dim.
TEST_P(Kernels, ProductsOfExperts) {
  for (const Grouped& g : {Grouped{1, 1, 1, 1, 1, 1},
                           {2, 9, 5, 5, 17, 33},
                           {3, 11, 7, 2, 64, 24},
                           {1, 150, 3, 2, 136, 40},
                           {1, 70, 9, 3, 72, 264},
                           {1, 67, 2, 2, 131, 65},
                           {2, 3, 1100, 2, 8, 8}}) {
    const int64_t terms = std::max({g.out, g.in, g.b * g.s * g.per_token}) + 1;
    for (Routing routing : kRoutings) {
      const OwnedTensor of_rows = ExpertsOfRows(ChosenExperts(random_, {g.b, g.s, g.per_token}, g.experts, routing));
      for (const Case& c : GroupedCases(random_, T(), g, of_rows)) {
        Check(c, SumBound(terms, 1), g.experts < 9);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Another alignment, too.
TEST_P(Kernels, ProductsOfExpertsAnywhere) {
  const Grouped g{2, 9, 5, 3, 40, 72};
  const OwnedTensor of_rows = ExpertsOfRows(ChosenExperts(random_, {2, 9, 3}, 5, Routing::kAny));
  for (const Case& c : GroupedCases(random_, T(), g, of_rows)) {
    Check(Shifted(c), SumBound(128, 1));
    Case one = c;
    for (size_t i = 0; i < 2; ++i) {
      one.inputs[i] = c.inputs[i].Shifted(1);  // only one operand
      Check(one, SumBound(128, 1));
      one.inputs[i] = c.inputs[i];
    }
  }
}

/// Row r of [b,s,k,width].
OwnedTensor RowOf(const OwnedTensor& rows, int64_t r) {
  const int64_t width = rows.shape().at(3);
  OwnedTensor row(rows.dtype(), {1, 1, 1, width});
  for (int64_t c = 0; c < width; ++c) row.Set(c, rows[r * width + c]);
  return row;
}

// A row alone has the bits that it has among others, and others that are infinite do not change it.
TEST_P(Kernels, RowsOfProductsDoNotDependOnOthers) {
  for (const Grouped& g : {Grouped{1, 170, 2, 1, 40, 72}, {1, 41, 5, 3, 17, 31}}) {
    const OwnedTensor of_rows =
        ExpertsOfRows(ChosenExperts(random_, {g.b, g.s, g.per_token}, g.experts, Routing::kAny));
    const std::vector<Case> cases = GroupedCases(random_, T(), g, of_rows);
    for (size_t product : {0, 1}) {
      Case c = cases[product];
      const OwnedTensor all = c.Tested()[0];
      for (int64_t r = 0; r < of_rows.Count(); r += 13) {
        OwnedTensor expert(kI32, {1, 1, 1});
        expert.Set(0, of_rows[r]);
        const Case one{c.op, {RowOf(c.inputs[0], r), c.inputs[1], expert}, {RowOf(all, r)}, c.attributes};
        EXPECT_TRUE(one.Tested()[0].SameBits(RowOf(all, r))) << "row " << r << " of product " << product;
      }
      c.inputs[0].Set(5 * c.inputs[0].shape()[3], kInfinity);
      EXPECT_TRUE(RowOf(c.Tested()[0], 6).SameBits(RowOf(all, 6)));
    }
  }
}

TEST_P(Kernels, WeightedSwiglu) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, {2, 3, 2, 17}, {1, 5, 3, 64}, {1, 2, 1, 4103}, {2, 65, 3, 8}}) {
    const Shape rows(shape.begin(), shape.end() - 1);
    const OwnedTensor gate = Real(shape, -9, 9), up = Real(shape), weights = F32(rows, -1, 2), dy = Real(shape);
    const Case c{"weighted_swiglu", {gate, up, weights}, {Empty(T(), shape)}};
    Check(c, SumBound(8, 18));
    Check(Shifted(c), SumBound(8, 18));
    const Case grad{"weighted_swiglu_grad", {gate, up, weights, dy}, {Real(shape), Real(shape), F32(rows)}};
    // silu of bf16 is inexact by 4e-7 of the gate.
    Check(grad, SumBound(8 * shape[3], 9));
    Check(Shifted(grad), SumBound(8 * shape[3], 9));
    for (size_t input : {0, 3}) CheckInPlace(grad, 0, input);
  }
}

TEST_P(Kernels, ExpertsOfEmptyExtents) {
  for (const Tokens& t : {Tokens{0, 3, 4, 2, 8}, {2, 0, 4, 2, 8}, {2, 3, 4, 0, 8}, {2, 3, 4, 2, 0}, {0, 0, 4, 0, 0}}) {
    const Shape slots = {t.b, t.s, t.per_token};
    const OwnedTensor rows = Real({t.b, t.s, t.per_token, t.width}), x = Real({t.b, t.s, t.width}),
                      chosen = ChosenExperts(random_, slots, t.experts, Routing::kAny), weights = F32(slots);
    Check(RouteCase(Real({t.b, t.s, t.experts}), RouterOf(false, true, t.per_token)), SumBound(8, 2.5));
    const Attributes losses{{{"balance", 0.01}, {"z_loss", 0.003}}, {{"scores", "softmax"}}};
    const OwnedTensor logits = Real({t.b, t.s, t.experts}), by_expert = F32({t.b, t.experts});
    Check({"balance", {logits, chosen}, {by_expert, by_expert, F32({t.b})}, losses}, SumBound(64, 4));
    Check({"balance_grad", {logits, by_expert}, {logits}, losses}, SumBound(8, 1));
    Check({"router_loss", {by_expert, by_expert, F32({t.b})}, {F32({}), F32({})}, losses, true}, SumBound(8, 1));
    const Case c{"dispatch", {x, chosen, weights}, {rows, weights, chosen, chosen}, {{{"experts", 4}}, {}}};
    Check(c, 0);
    const OwnedTensor places = c.Reference()[3];
    Check({"combine", {rows, places}, {x}}, SumBound(2, 1));
    Check({"combine_grad", {x, places}, {rows}}, 0);
    Check({"dispatch_grad", {rows, weights, places}, {x, weights}}, SumBound(2, 1));
    Check({"weighted_swiglu", {rows, rows, weights}, {rows}}, SumBound(8, 1));
    Check({"weighted_swiglu_grad", {rows, rows, weights, rows}, {rows, rows, weights}}, SumBound(64, 1));
    for (const auto& [out, in] : {std::pair{t.width, int64_t{5}}, {5, t.width}})
      for (const Case& product :
           GroupedCases(random_, T(), {t.b, t.s, t.experts, t.per_token, out, in}, ExpertsOfRows(chosen)))
        Check(product, SumBound(16, 1));
  }
}

}  // namespace
}  // namespace espalier::testing
