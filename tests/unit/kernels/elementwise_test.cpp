// Elementwise kernels: sums, gates, casts and rotations.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

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

// The table's width says how many columns of each head are rotated.
TEST_P(Kernels, RopeOfAPartOfEachHead) {
  for (const auto& [e, rotated] : {std::pair{4, 2}, {64, 32}, {34, 6}}) {
    const OwnedTensor x = Real({2, 5, 3 * e}), table = F32({5, rotated});
    Case c{"rope", {x, table}, {Empty(T(), x.shape())}, {{{"head_dim", e}, {"inverse", 0}}, {}}};
    Check(c, SumBound(2, 1));
    CheckInPlace(c, 0, 0);
    const OwnedTensor y = c.Tested()[0];
    for (int64_t i = 0; i < x.Count(); ++i)
      if (i % e >= rotated) ASSERT_EQ(y[i], x[i]) << i;
  }
}

// The last columns of each head, and pairs that are neighbours; in order and in reverse.
TEST_P(Kernels, RopeOfNeighboursFromAColumnOn) {
  for (const auto& [e, first, rotated] : {std::tuple{6, 0, 6}, {14, 8, 6}, {24, 8, 16}, {192, 128, 64}, {9, 2, 4}})
    for (int adjacent : {0, 1})
      for (int inverse : {0, 1}) {
        const OwnedTensor x = Real({2, 5, 3 * e}), table = F32({5, rotated});
        Case c{"rope", {x, table}, {Empty(T(), x.shape())}, {{{"head_dim", e}, {"inverse", inverse}}, {}}};
        c.attributes.numbers.insert({{"first", first}, {"adjacent", adjacent}});
        Check(c, SumBound(2, 1));
        CheckInPlace(c, 0, 0);
        const OwnedTensor y = c.Tested()[0];
        for (int64_t i = 0; i < x.Count(); ++i)
          if (i % e < first || i % e >= first + rotated) ASSERT_EQ(y[i], x[i]) << i;
      }
}

TEST_P(Kernels, LatentKeys) {
  for (const auto& [heads, nope, rope, value] :
       {std::tuple{1, 2, 2, 2}, {3, 7, 2, 5}, {4, 16, 8, 24}, {2, 128, 64, 128}, {0, 4, 2, 3}, {5, 33, 6, 1}}) {
    const Attributes widths{{{"nope_dim", nope}, {"value_dim", value}}, {}};
    const Shape kv = {2, 9, heads * (nope + value)}, shared = {2, 9, rope}, k = {2, 9, heads * (nope + rope)},
                v = {2, 9, heads * value};
    Check({"latent_keys", {Real(kv), Real(shared)}, {Real(k), Real(v)}, widths}, 0);
    if (heads > 0)
      Check({"latent_keys_grad", {Real(k), Real(v)}, {Real(kv), Real(shared)}, widths}, SumBound(heads, 2));
  }
}

// Queries and keys in columns of one tensor are rotated as in separate tensors; the values in the other columns stay.
TEST_P(Kernels, RopeOfJoinedHeads) {
  for (int64_t e : {2, 6, 64}) {
    const OwnedTensor table = F32({17, e});
    const std::vector<OwnedTensor> parts = {Real({2, 17, 3 * e}), Real({2, 17, e}), Real({2, 17, e})};
    Attributes attributes{{{"head_dim", e}, {"inverse", 1}}, {}};
    std::vector<OwnedTensor> rotated;
    for (const OwnedTensor& x : {parts[0], parts[1]})
      rotated.push_back(Case{"rope", {x, table}, {Empty(T(), x.shape())}, attributes}.Tested()[0]);
    rotated.push_back(parts[2]);
    const OwnedTensor all = SideBySide(parts);
    const Case joined{"rope", {all, table}, {Empty(T(), all.shape())}, WithColumns(attributes, parts)};
    Check(joined, SumBound(2, 1));
    CheckInPlace(joined, 0, 0);
    EXPECT_TRUE(joined.Tested()[0].SameBits(SideBySide(rotated))) << "heads of " << e;
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

// Gate and up in columns of one tensor give the bits of two tensors.
TEST_P(Kernels, SwigluOfJoinedGates) {
  for (const Shape& shape : {Shape{1, 1, 1}, {2, 3, 17}, {1, 5, 64}, {3, 41, 1000}}) {
    const std::vector<OwnedTensor> gates = {Real(shape, -9, 9), Real(shape)};
    const OwnedTensor dy = Real(shape), both = SideBySide(gates);
    const Attributes columns = WithColumns({}, gates);
    const Case apart{"swiglu", gates, {Empty(T(), shape)}}, joined{"swiglu", {both}, {Empty(T(), shape)}, columns};
    Check(joined, SumBound(8, 9));
    EXPECT_TRUE(joined.Tested()[0].SameBits(apart.Tested()[0])) << ToString(shape);
    const Case grad_apart{"swiglu_grad", {gates[0], gates[1], dy}, {Empty(T(), shape), Empty(T(), shape)}},
        grad{"swiglu_grad", {both, dy}, {Empty(T(), both.shape())}, columns};
    Check(grad, SumBound(8, 9));
    CheckInPlace(grad, 0, 0);
    EXPECT_TRUE(grad.Tested()[0].SameBits(SideBySide(grad_apart.Tested()))) << ToString(shape);
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

}  // namespace
}  // namespace espalier::testing
