// Rows of experts: pools of them, their matmuls and gates.
#include "experts_testing.hpp"

namespace espalier::testing {
namespace {

/// A pool of a rank that has `here` experts from `first` on: rows for each of them and each sequence.
struct Pool {
  Tokens tokens;
  int64_t first, here, rows;

  Shape Slots() const { return {tokens.b, tokens.s, tokens.per_token}; }
  Shape Places() const { return {1, tokens.b, tokens.s, tokens.per_token}; }
  Shape Lists() const { return {here, tokens.b, rows}; }
  Shape Rows() const { return {here, tokens.b, rows, tokens.width}; }
  Attributes Of(int64_t pass) const {
    return {{{"experts", double(tokens.experts)}, {"ranks", 1}, {"rows", double(rows)}, {"pass", double(pass)}}, {}};
  }
};

/// Few and many slots and experts, more than a block takes at a time; pools that are just right, too large and too
/// small; all experts, or those of one rank among several.
constexpr Pool kPools[] = {
    {{1, 1, 1, 1, 1}, 0, 1, 1},      {{2, 9, 5, 5, 17}, 0, 5, 9},       {{3, 11, 7, 2, 64}, 0, 7, 5},
    {{3, 11, 7, 2, 64}, 2, 3, 2},    {{2, 65, 2053, 3, 3}, 0, 2053, 1}, {{2, 65, 2053, 3, 3}, 1000, 1053, 2},
    {{5, 601, 13, 6, 1}, 6, 7, 100}, {{1, 97, 16, 8, 1032}, 8, 8, 30},  {{4, 5, 8, 1, 24}, 4, 4, 20},
};

std::vector<OwnedTensor> OutputsOf(const Pool& p, const OwnedTensor& rows, const OwnedTensor& weights) {
  return {rows, weights, OwnedTensor(kI32, p.Lists(), {p.first, 0, 0}), OwnedTensor(kI32, p.Places())};
}

TEST_P(Kernels, RowsOfExperts) {
  for (const Pool& p : kPools) {
    for (Routing routing : kRoutings) {
      const Tokens& t = p.tokens;
      const OwnedTensor x = Real({t.b, t.s, t.width}), chosen = ChosenExperts(random_, p.Slots(), t.experts, routing);
      for (int64_t pass : {0, 1}) {
        const Case c{"dispatch", {x, chosen, F32(p.Slots())}, OutputsOf(p, Real(p.Rows()), F32(p.Lists())), p.Of(pass)};
        Check(c, 0);
        Check(Shifted(c), 0);
        const OwnedTensor places = c.Reference()[3];
        for (bool accumulate : {false, true})
          for (const Case& d : {Case{"combine", {Real(p.Rows()), places}, {x}, p.Of(pass), accumulate},
                                Case{"dispatch_grad",
                                     {Real(p.Rows()), F32(p.Lists()), places},
                                     {x, F32(p.Slots())},
                                     p.Of(pass),
                                     accumulate}}) {
            Check(d, SumBound(t.per_token + 1, 1));
            Check(Shifted(d), SumBound(t.per_token + 1, 1));
          }
        const Case grad{"combine_grad", {x, places}, {Real(p.Rows())}, p.Of(pass)};
        Check(grad, 0);
        Check(Shifted(grad), 0);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// All passes together: each slot of an expert of this rank has one row in one of them, rows are in the order of experts
// and tokens, and hold what their token has.
TEST_P(Kernels, PassesHaveEachRowOnce) {
  for (const Pool& p : kPools) {
    for (Routing routing : kRoutings) {
      const Tokens& t = p.tokens;
      const OwnedTensor x = Real({t.b, t.s, t.width}), chosen = ChosenExperts(random_, p.Slots(), t.experts, routing),
                        weights = F32(p.Slots());
      const auto is_here = [&](int64_t slot) { return chosen[slot] >= p.first && chosen[slot] < p.first + p.here; };
      int64_t expected = 0, found = 0;
      for (int64_t slot = 0; slot < chosen.Count(); ++slot) expected += is_here(slot) ? 1 : 0;
      const int64_t room = p.here * t.b * p.rows;
      double last_expert = 0, last_slot = -1;
      for (int64_t pass = 0; pass * room < expected || pass == 0; ++pass) {
        const Case c{"dispatch", {x, chosen, weights}, OutputsOf(p, Real(p.Rows()), F32(p.Lists())), p.Of(pass)};
        const std::vector<OwnedTensor> made = c.Tested();
        std::vector<int64_t> slot_of(static_cast<size_t>(room), -1);
        for (int64_t slot = 0; slot < chosen.Count(); ++slot) {
          if (made[3][slot] < 0) continue;
          ASSERT_TRUE(is_here(slot));
          ASSERT_EQ(slot_of.at(static_cast<size_t>(made[3][slot])), -1) << "two slots in one row";
          slot_of[static_cast<size_t>(made[3][slot])] = slot;
        }
        const int64_t filled = std::min(room, expected - pass * room);
        for (int64_t r = 0; r < room; ++r) {
          const int64_t slot = slot_of[static_cast<size_t>(r)];
          ASSERT_EQ(slot >= 0, r < filled) << "rows are filled from the first on";
          ASSERT_EQ(made[2][r], slot < 0 ? double(INT32_MAX) : chosen[slot] - double(p.first));
          ASSERT_EQ(made[1][r], slot < 0 ? 0 : weights[slot]);
          if (slot < 0) continue;
          ASSERT_TRUE(made[2][r] > last_expert || (made[2][r] == last_expert && double(slot) > last_slot));
          last_expert = made[2][r], last_slot = double(slot);
          ++found;
          for (int64_t column = 0; column < t.width; ++column)
            ASSERT_EQ(made[0][r * t.width + column], x[slot / t.per_token * t.width + column]);
        }
      }
      EXPECT_EQ(found, expected);
    }
  }
}

/// The three products with random operands: y, dx and dW.
std::vector<Case> GroupedCases(Random& random, Dtype type, const Grouped& g, const OwnedTensor& of_rows) {
  const OwnedTensor x = Spoiled(random.Real(type, {g.experts, g.b, g.rows, g.in}), of_rows),
                    dy = Spoiled(random.Real(type, {g.experts, g.b, g.rows, g.out}), of_rows),
                    weight = random.Real(type, {g.experts, g.out, g.in}),
                    dweight = random.Real(kF32, {g.experts, g.out, g.in});
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const auto of_weights = [&](bool accumulate) {
    return Case{"grouped_matmul", {dy, x, of_rows}, {dweight}, spec("ebsn,ebsk->enk"), accumulate};
  };
  return {{"grouped_matmul", {x, weight, of_rows}, {dy}, spec("ebsk,enk->ebsn")},
          {"grouped_matmul", {dy, weight, of_rows}, {x}, spec("ebsn,enk->ebsk")},
          of_weights(false),
          of_weights(true)};
}

// Rows of whole packs and others; one tile and several, of rows, of columns and along the contracted dim.
TEST_P(Kernels, ProductsOfExperts) {
  for (const Grouped& g : {Grouped{1, 1, 1, 1, 1},
                           {2, 9, 5, 17, 33},
                           {3, 3, 7, 64, 24},
                           {1, 100, 3, 136, 40},
                           {1, 24, 9, 72, 264},
                           {1, 67, 2, 131, 65},
                           {2, 1, 1100, 8, 8}}) {
    const int64_t count = g.experts * g.b * g.rows, terms = std::max({g.out, g.in, count}) + 1;
    for (Routing routing : kRoutings) {
      for (int64_t without : {int64_t{0}, count / 3, count}) {
        const OwnedTensor of_rows = ExpertsOfRows(random_, g, routing, without);
        for (const Case& c : GroupedCases(random_, T(), g, of_rows)) {
          Check(c, SumBound(terms, 1), g.experts < 9);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Another alignment, too.
TEST_P(Kernels, ProductsOfExpertsAnywhere) {
  const Grouped g{2, 6, 5, 40, 72};
  const OwnedTensor of_rows = ExpertsOfRows(random_, g, Routing::kAny, 7);
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

// A row alone has the bits that it has among others, and others that are infinite do not change it.
TEST_P(Kernels, RowsOfProductsDoNotDependOnOthers) {
  for (const Grouped& g : {Grouped{1, 85, 2, 40, 72}, {1, 25, 5, 17, 31}}) {
    const OwnedTensor of_rows = ExpertsOfRows(random_, g, Routing::kAny, 3);
    const std::vector<Case> cases = GroupedCases(random_, T(), g, of_rows);
    for (size_t product : {0, 1}) {
      Case c = cases[product];
      const OwnedTensor all = c.Tested()[0];
      for (int64_t r = 0; r < of_rows.Count() - 3; r += 13) {
        OwnedTensor expert(kI32, {g.experts, 1, 1});
        for (int64_t e = 1; e < g.experts; ++e) expert.Set(e, double(INT32_MAX));
        expert.Set(0, of_rows[r]);
        const Case one{
            c.op, {RowOf(c.inputs[0], r, g.experts), c.inputs[1], expert}, {RowOf(all, r, g.experts)}, c.attributes};
        EXPECT_TRUE(one.Tested()[0].SameBits(RowOf(all, r, g.experts))) << "row " << r << " of product " << product;
      }
      c.inputs[0].Set(5 * c.inputs[0].shape()[3], kInfinity);
      EXPECT_TRUE(RowOf(c.Tested()[0], 6, 1).SameBits(RowOf(all, 6, 1)));
    }
  }
}

TEST_P(Kernels, WeightedSwiglu) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, {2, 3, 2, 17}, {1, 5, 3, 64}, {1, 2, 1, 4103}, {2, 65, 3, 8}}) {
    const Shape rows(shape.begin(), shape.end() - 1);
    const int64_t count = shape[0] * shape[1] * shape[2];
    for (int64_t without : {int64_t{0}, count / 2}) {
      const OwnedTensor of_rows = ExpertsOfRows(random_, {shape[1], shape[2], shape[0], 0, 0}, Routing::kAny, without);
      const OwnedTensor gate = Spoiled(Real(shape, -9, 9), of_rows), up = Spoiled(Real(shape), of_rows),
                        weights = F32(rows, -1, 2), dy = Spoiled(Real(shape), of_rows);
      // With limits within the values, and the form without.
      for (const Attributes& form : {Attributes{}, Attributes{{{"limit", 0.75}}, {}}}) {
        const Case c{"weighted_swiglu", {gate, up, weights, of_rows}, {Real(shape)}, form};
        Check(c, SumBound(8, 18));
        Check(Shifted(c), SumBound(8, 18));
        const Case grad{
            "weighted_swiglu_grad", {gate, up, weights, dy, of_rows}, {Real(shape), Real(shape), F32(rows)}, form};
        // silu of bf16 is inexact by 4e-7 of the gate.
        Check(grad, SumBound(8 * shape[3], 9));
        Check(Shifted(grad), SumBound(8 * shape[3], 9));
        if (without == 0)
          for (size_t input : {0, 3}) CheckInPlace(grad, 0, input);
      }
    }
  }
}

// gpt-oss: (up + 1) gate sigmoid(1.702 gate), gate at most 7, up within 7; no gradient beyond, one at the limit itself.
TEST(KernelsExperts, LimitsOfGateAndUp) {
  const double gates[] = {-9, 0.5, 7, 9, 2}, ups[] = {3, -0.25, 7, -8, 8};
  const Shape shape = {1, 1, 1, 5};
  OwnedTensor gate(kF32, shape), up(kF32, shape), weight(kF32, {1, 1, 1}), dy(kF32, shape), expert(kI32, {1, 1, 1});
  weight.Set(0, 0.5);
  for (int64_t i = 0; i < 5; ++i) gate.Set(i, gates[i]), up.Set(i, ups[i]), dy.Set(i, 2);
  const Attributes form{{{"limit", 7}}, {}};
  const OwnedTensor y = Case{"weighted_swiglu", {gate, up, weight, expert}, {gate}, form}.Tested()[0];
  const std::vector<OwnedTensor> gradients =
      Case{"weighted_swiglu_grad", {gate, up, weight, dy, expert}, {gate, up, weight}, form}.Tested();
  double dweight = 0;
  for (int64_t i = 0; i < 5; ++i) {
    const double g = std::min(gates[i], 7.0), u = std::clamp(ups[i], -7.0, 7.0), s = 1 / (1 + std::exp(-1.702 * g));
    EXPECT_NEAR(y[i], 0.5 * (u + 1) * g * s, 1e-5);
    dweight += 2 * (u + 1) * g * s;
    EXPECT_NEAR(gradients[0][i], gates[i] > 7 ? 0 : (u + 1) * s * (1 + 1.702 * g * (1 - s)), 1e-5);
    EXPECT_NEAR(gradients[1][i], std::abs(ups[i]) > 7 ? 0 : g * s, 1e-5);
  }
  EXPECT_NEAR(gradients[2][0], dweight, 1e-4);
}

// Experts with many rows, few and none; with weights of rows and without.
TEST_P(Kernels, BiasesOfExperts) {
  for (const Grouped& g : {Grouped{1, 1, 1, 1, 0},
                           {2, 9, 5, 17, 0},
                           {3, 3, 7, 64, 0},
                           {1, 700, 3, 136, 0},
                           {1, 67, 2, 1031, 0},
                           {2, 1, 1100, 8, 0}}) {
    const Shape lists = {g.experts, g.b, g.rows}, shape = {g.experts, g.b, g.rows, g.out}, biases = {g.experts, g.out};
    const int64_t count = Volume(lists);
    for (Routing routing : kRoutings)
      for (int64_t without : {int64_t{0}, count / 3, count}) {
        const OwnedTensor of_rows = ExpertsOfRows(random_, g, routing, without), x = Spoiled(Real(shape), of_rows),
                          bias = Real(biases), weights = F32(lists, -1, 2);
        for (bool weighted : {false, true}) {
          Case c{"add_row_bias", {x, bias, of_rows}, {Real(shape)}}, grad{"row_bias_grad", {x, of_rows}, {F32(biases)}};
          if (weighted) c.inputs.push_back(weights), grad.inputs.push_back(weights);
          Check(c, SumBound(2, 3));
          Check(Shifted(c), SumBound(2, 3));
          if (without == 0) CheckInPlace(c, 0, 0);
          for (bool accumulate : {false, true}) {
            grad.accumulate = accumulate;
            Check(grad, SumBound(count + 1, 2));
            Check(Shifted(grad), SumBound(count + 1, 2));
          }
        }
        const Case of_weights{"row_weight_grad", {x, bias, of_rows}, {F32(lists)}};
        Check(of_weights, SumBound(g.out, 1));
        Check(Shifted(of_weights), SumBound(g.out, 1));
        if (HasFatalFailure()) return;
      }
  }
}

TEST_P(Kernels, RowsOfEmptyExtents) {
  for (const Tokens& t : {Tokens{0, 3, 4, 2, 8}, {2, 0, 4, 2, 8}, {2, 3, 4, 0, 8}, {2, 3, 4, 2, 0}, {0, 0, 4, 0, 0}}) {
    const Pool p{t, 0, 4, 2};
    const OwnedTensor rows = Real(p.Rows()), x = Real({t.b, t.s, t.width}), weights = F32(p.Slots()),
                      lists = F32(p.Lists()), chosen = ChosenExperts(random_, p.Slots(), t.experts, Routing::kAny);
    const Case c{"dispatch", {x, chosen, weights}, OutputsOf(p, rows, lists), p.Of(0)};
    Check(c, 0);
    const OwnedTensor of_rows = c.Reference()[2], places = c.Reference()[3];
    Check({"combine", {rows, places}, {x}}, SumBound(2, 1));
    Check({"combine_grad", {x, places}, {rows}}, 0);
    Check({"dispatch_grad", {rows, lists, places}, {x, weights}}, SumBound(2, 1));
    Check({"weighted_swiglu", {rows, rows, lists, of_rows}, {rows}}, SumBound(8, 1));
    Check({"weighted_swiglu_grad", {rows, rows, lists, rows, of_rows}, {rows, rows, lists}}, SumBound(64, 1));
    const OwnedTensor biases = Real({t.experts, t.width});
    Check({"add_row_bias", {rows, biases, of_rows, lists}, {rows}}, SumBound(2, 3));
    Check({"row_bias_grad", {rows, of_rows, lists}, {F32({t.experts, t.width})}}, SumBound(16, 1));
    Check({"row_weight_grad", {rows, biases, of_rows}, {lists}}, SumBound(8, 1));
    for (const auto& [out, in] : {std::pair{t.width, int64_t{5}}, {5, t.width}})
      for (const Case& product : GroupedCases(random_, T(), {t.b, p.rows, t.experts, out, in}, of_rows))
        Check(product, SumBound(16, 1));
  }
}

}  // namespace
}  // namespace espalier::testing
