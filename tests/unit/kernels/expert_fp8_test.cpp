// Rows and weights of experts in fp8, and their matmuls.
#include "experts_testing.hpp"
#include "fp8_testing.hpp"

namespace espalier::testing {
namespace {

constexpr Dtype kE4m3 = Dtype::kF8E4M3, kE5m2 = Dtype::kF8E5M2;

Case RowsCase(Dtype format, const OwnedTensor& x, const OwnedTensor& of_rows) {
  const Shape pool(x.shape().begin(), x.shape().end() - 1);
  return {"quantize",
          {x, of_rows},
          {OwnedTensor(format, x.shape()), OwnedTensor(kF32, pool)},
          QuantizeTo(format, "ebsk->ebsk,ebs")};
}

/// How a weight of experts is stored and scaled, and the same of one weight.
struct WeightSpec {
  const char *experts, *one;
  bool transposed, rows;
};
constexpr WeightSpec kExpertWeights[] = {{"enk->enk,e", "nk->nk,y", false, false},
                                         {"enk->ekn,e", "nk->kn,y", true, false},
                                         {"enk->enk,en", "nk->nk,ny", false, true},
                                         {"enk->ekn,ek", "nk->kn,ky", true, true}};

Case WeightCase(const WeightSpec& spec, const OwnedTensor& w) {
  const int64_t experts = w.shape()[0], n = w.shape()[1], k = w.shape()[2];
  const Shape stored = spec.transposed ? Shape{experts, k, n} : w.shape();
  const Shape scales = spec.rows ? Shape{experts, stored[1]} : Shape{experts};
  return {"quantize", {w}, {OwnedTensor(kE4m3, stored), OwnedTensor(kF32, scales)}, QuantizeTo(kE4m3, spec.experts)};
}

TEST(KernelsExpertsFp8, RowsAreQuantizedEachByItself) {
  Random random;
  for (const Grouped& g : {Grouped{1, 1, 1, 0, 1}, {2, 9, 5, 0, 33}, {3, 3, 7, 0, 24}, {1, 67, 2, 0, 1040}}) {
    const Shape shape = {g.experts, g.b, g.rows, g.in};
    const int64_t count = g.experts * g.b * g.rows;
    for (Dtype format : {kE4m3, kE5m2})
      for (int64_t without : {int64_t{0}, count / 3, count}) {
        const OwnedTensor of_rows = ExpertsOfRows(random, g, Routing::kAny, without),
                          x = Spoiled(Spread(random, shape), of_rows);
        const Case c = RowsCase(format, x, of_rows);
        CheckBits(c);
        const std::vector<OwnedTensor> made = c.Tested();
        for (int64_t r = 0; r < count; ++r) {
          const bool used = r < count - without;
          EXPECT_EQ(made[1][r] != 0, used) << "rows without an expert are not touched";
          for (int64_t i = 0; used && i < g.in; ++i) ASSERT_TRUE(std::isfinite(made[0][r * g.in + i]));
        }
      }
  }
}

// An expert's weight has the bits that it has alone: those that no other experts of its rank change.
TEST(KernelsExpertsFp8, WeightsAreQuantizedEachByItself) {
  Random random;
  for (const Shape& shape :
       {Shape{1, 1, 1}, {3, 5, 7}, {5, 33, 40}, {4, 64, 192}, {2, 301, 77}, {7, 2, 4}, {0, 3, 4}, {3, 0, 4}})
    for (const WeightSpec& spec : kExpertWeights) {
      const Case all = WeightCase(spec, Spread(random, shape));
      CheckBits(all);
      const std::vector<OwnedTensor> made = all.Tested();
      for (int64_t e = 0; e < shape[0]; ++e) {
        OwnedTensor w(kBf16, {shape[1], shape[2]});
        for (int64_t i = 0; i < w.Count(); ++i) w.Set(i, all.inputs[0][e * w.Count() + i]);
        const int64_t scales = made[1].Count() / shape[0];
        const Case one{"quantize",
                       {w},
                       {OwnedTensor(kE4m3, spec.transposed ? Shape{shape[2], shape[1]} : w.shape()),
                        OwnedTensor(kF32, spec.rows ? Shape{scales, 1} : Shape{1})},
                       QuantizeTo(kE4m3, spec.one)};
        const std::vector<OwnedTensor> alone = one.Tested();
        for (int64_t i = 0; i < w.Count(); ++i) ASSERT_EQ(alone[0][i], made[0][e * w.Count() + i]) << spec.experts;
        for (int64_t i = 0; i < scales; ++i) ASSERT_EQ(alone[1][i], made[1][e * scales + i]) << spec.experts;
      }
    }
}

/// y = x W^T, or with `gradient` dx = dy W, of operands that the tested kernels quantize.
Case ProductOf(const OwnedTensor& x, const OwnedTensor& w, const OwnedTensor& of_rows, bool gradient, bool rows) {
  Shape result = x.shape();
  result[3] = w.shape()[gradient ? 2 : 1];
  const std::vector<OwnedTensor> a = RowsCase(gradient ? kE5m2 : kE4m3, x, of_rows).Tested(),
                                 b = WeightCase(kExpertWeights[(rows ? 2 : 0) + (gradient ? 1 : 0)], w).Tested();
  return {"grouped_matmul",
          {a[0], b[0], of_rows, a[1], b[1]},
          {OwnedTensor(kBf16, result)},
          {{}, {{"spec", gradient ? "ebsn,ekn->ebsk" : "ebsk,enk->ebsn"}, {"scales", rows ? "row" : "tensor"}}}};
}

// Odd numbers of rows, experts without rows and one with all; one tile and several, of rows, of columns and along the
// contracted dim.
TEST(KernelsExpertsFp8, ProductsMultiplyWhatWasQuantized) {
  Random random;
  for (const Grouped& g :
       {Grouped{1, 1, 1, 16, 16}, {2, 9, 5, 32, 48}, {1, 100, 3, 144, 80}, {1, 24, 9, 80, 272}, {1, 67, 2, 48, 352}})
    for (Routing routing : kRoutings)
      for (int64_t without : {int64_t{0}, int64_t{1}, g.experts * g.b * g.rows})
        for (bool gradient : {false, true})
          for (bool rows : {false, true}) {
            const OwnedTensor of_rows = ExpertsOfRows(random, g, routing, without);
            const int64_t depth = gradient ? g.out : g.in;
            const OwnedTensor x = Spoiled(random.Real(kBf16, {g.experts, g.b, g.rows, depth}), of_rows),
                              w = random.Real(kBf16, {g.experts, g.out, g.in});
            Check(ProductOf(x, w, of_rows, gradient, rows), Fp8SumBound(depth), false);
            if (::testing::Test::HasFatalFailure()) return;
          }
}

// From the value in bf16 on: a row alone has the bits that it has among others, and others that are infinite do not
// change it.
TEST(KernelsExpertsFp8, RowsDoNotDependOnOthers) {
  Random random;
  const Grouped g{1, 85, 2, 48, 80};
  const OwnedTensor of_rows = ExpertsOfRows(random, g, Routing::kAny, 3);
  for (bool gradient : {false, true}) {
    OwnedTensor x = Spoiled(random.Real(kBf16, {g.experts, g.b, g.rows, gradient ? g.out : g.in}), of_rows);
    const OwnedTensor w = random.Real(kBf16, {g.experts, g.out, g.in});
    const OwnedTensor all = ProductOf(x, w, of_rows, gradient, false).Tested()[0];
    for (int64_t r = 0; r < of_rows.Count() - 3; r += 13) {
      OwnedTensor expert(kI32, {g.experts, 1, 1});
      for (int64_t e = 1; e < g.experts; ++e) expert.Set(e, double(INT32_MAX));
      expert.Set(0, of_rows[r]);
      Case one = ProductOf(RowOf(x, r, g.experts), w, expert, gradient, false);
      one.outputs = {RowOf(all, r, g.experts)};
      EXPECT_TRUE(one.Tested()[0].SameBits(RowOf(all, r, g.experts))) << "row " << r;
    }
    x.Set(5 * x.shape()[3], kInfinity);
    const OwnedTensor again = ProductOf(x, w, of_rows, gradient, false).Tested()[0];
    EXPECT_TRUE(RowOf(again, 6, 1).SameBits(RowOf(all, 6, 1)));
    EXPECT_TRUE(std::isnan(again[5 * again.shape()[3]])) << "what is not finite stays visible";
  }
}

}  // namespace
}  // namespace espalier::testing
