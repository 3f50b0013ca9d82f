// Muon's element-wise steps.
#include "copy_cases.hpp"
#include "fixture.hpp"

namespace espalier::testing {
namespace {

OwnedTensor Scalar(double x) {
  OwnedTensor t(kF32, {});
  t.Set(0, x);
  return t;
}

Case DirectionCase(int64_t n, bool nesterov, double apply = 1) {
  Random random;
  return {"muon_direction",
          {Scalar(0.013), Scalar(apply), random.Real(kF32, {n, 3}), random.Real(kF32, {n, 3}, -50, 50)},
          {OwnedTensor(kF32, {n, 3}), OwnedTensor(kF32, {n, 3})},
          {{{"beta", 0.9}, {"nesterov", nesterov ? 1.0 : 0.0}}, {}}};
}

/// The state is updated in place: the output starts with the contents of the input.
Case InPlace(Case c, size_t output, size_t input) {
  c.outputs[output] = c.inputs[input];
  return c;
}

TEST(KernelsMuon, Direction) {
  for (int64_t n : {1, 17, 40001})
    for (bool nesterov : {false, true}) {
      const Case c = InPlace(DirectionCase(n, nesterov), 0, 2);
      Check(c, SumBound(8, 1));
      CheckInPlace(c, 1, 3);
      CheckPieces(c);
      const double before = c.inputs[2][0], g = c.inputs[3][0] * 0.013, momentum = before + 0.1 * (g - before);
      EXPECT_NEAR(c.Tested()[0][0], momentum, 1e-5);
      EXPECT_NEAR(c.Tested()[1][0], nesterov ? g + 0.9 * (momentum - g) : momentum, 1e-5);
    }
}

// A gradient that is not finite must not reach the momentum.
TEST(KernelsMuon, NothingMovesUnlessTheStepApplies) {
  Case c = InPlace(DirectionCase(1000, true, 0), 0, 2);
  c.inputs[3].Set(7, kInfinity);
  c.inputs[3].Set(8, std::nan(""));
  for (const std::vector<OwnedTensor>& results : {c.Tested(), c.Reference()}) {
    EXPECT_TRUE(results[0].SameBits(c.inputs[2]));
    EXPECT_TRUE(results[1].SameBits(c.inputs[2]));
  }
}

TEST(KernelsMuon, Normalize) {
  Random random;
  for (Dtype dtype : {kF32, kBf16})
    for (double squares : {12.25, 1e-20, 0.0}) {
      const Case c{"normalize",
                   {random.Real(kF32, {333, 7}), Scalar(squares)},
                   {OwnedTensor(dtype, {333, 7})},
                   {{{"eps", 1e-7}}, {{"to", std::string(Name(dtype))}}}};
      Check(c, SumBound(4, 1));
      if (dtype == kF32 && squares == 12.25) {
        EXPECT_FLOAT_EQ(c.Tested()[0][5], c.inputs[0][5] / 3.5);
      }
    }
}

TEST(KernelsMuon, WeightedSum) {
  Random random;
  for (Dtype dtype : {kF32, kBf16}) {
    const Case c{"weighted_sum",
                 {random.Real(dtype, {101, 9}), random.Real(dtype, {101, 9})},
                 {OwnedTensor(dtype, {101, 9})},
                 {{{"alpha", -4.775}, {"beta", 2.0315}}, {}}};
    Check(c, SumBound(4, 8));
    for (size_t input : {0, 1}) CheckInPlace(c, 0, input);
    CheckPieces(c);
  }
}

Case UpdateCase(Dtype dtype, double apply) {
  Random random;
  const OwnedTensor master = random.Real(kF32, {501, 5});
  return {"muon_update",
          {Scalar(0.02), Scalar(apply), master, random.Real(dtype, {501, 5})},
          {master},
          {{{"weight_decay", 0.1}, {"factor", 1.7}}, {}}};
}

TEST(KernelsMuon, Update) {
  for (Dtype dtype : {kF32, kBf16}) {
    const Case c = UpdateCase(dtype, 1), none = UpdateCase(dtype, 0);
    Check(c, SumBound(4, 1));
    CheckPieces(c);
    EXPECT_FLOAT_EQ(c.Tested()[0][3], c.inputs[2][3] * (1 - 0.002) - 0.034 * c.inputs[3][3]);
    EXPECT_TRUE(none.Tested()[0].SameBits(none.inputs[2]));
    EXPECT_TRUE(none.Reference()[0].SameBits(none.inputs[2]));
  }
}

TEST(KernelsMuon, UpdateWritesTheRoundedMasterAsWell) {
  for (Dtype dtype : {kF32, kBf16}) {
    CheckCopies(UpdateCase(dtype, 1), 1);
    CheckCopiesStay(UpdateCase(dtype, 0), 1);
  }
}

// Two matrices: both stored as rows, the second transposed, the first transposed.
TEST(KernelsMuon, MatmulsOfMatrices) {
  Random random;
  for (Dtype dtype : {kF32, kBf16}) {
    const auto check = [&](const char* spec, Shape a, Shape b, Shape c, int64_t depth) {
      Check({"matmul", {random.Real(dtype, a), random.Real(dtype, b)}, {OwnedTensor(dtype, c)}, {{}, {{"spec", spec}}}},
            SumBound(depth, 1));
    };
    check("sk,nk->sn", {37, 19}, {23, 19}, {37, 23}, 19);
    check("sk,kn->sn", {37, 19}, {19, 23}, {37, 23}, 19);
    check("sk,sn->kn", {37, 19}, {37, 23}, {19, 23}, 37);
  }
}

/// Matrix e of a tensor [e,n,k].
OwnedTensor MatrixOf(const OwnedTensor& x, int64_t e) {
  const int64_t rows = x.shape()[1], columns = x.shape()[2];
  OwnedTensor matrix(x.dtype(), {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) matrix.Set(i, x[e * rows * columns + i]);
  return matrix;
}

/// The results of a call on all matrices are those of calls on each of them, bit by bit.
void CheckEach(const Case& all, std::string_view spec_of_one) {
  const std::vector<OwnedTensor> results = all.Tested();
  for (int64_t e = 0; e < all.inputs[0].shape()[0]; ++e) {
    Case one = all;
    one.attributes.numbers.erase("each");
    if (!spec_of_one.empty()) one.attributes.texts["spec"] = spec_of_one;
    for (OwnedTensor& x : one.inputs) {
      if (x.shape().size() == 3)
        x = MatrixOf(x, e);
      else
        x = Scalar(x[e]);
    }
    OwnedTensor& result = one.outputs[0];
    result = result.shape().size() == 3 ? MatrixOf(result, e) : OwnedTensor(kF32, {});
    const OwnedTensor expected = one.Tested()[0];
    if (expected.shape().empty())
      EXPECT_EQ(results[0][e], expected[0]) << e;
    else
      EXPECT_TRUE(MatrixOf(results[0], e).SameBits(expected)) << all.op << " of matrix " << e;
  }
}

// For experts: each matrix by itself, whether matrices are multiples of 16 bytes or not; none, and matrices without
// rows.
TEST(KernelsMuon, MatmulsOfManyMatrices) {
  Random random;
  for (Dtype dtype : {kF32, kBf16})
    for (const auto& [count, m, n, k] : std::vector<std::array<int64_t, 4>>{
             {5, 37, 23, 19}, {3, 32, 16, 64}, {1, 7, 5, 3}, {0, 7, 5, 3}, {4, 7, 5, 0}, {4, 0, 5, 3}}) {
      const auto check = [&, e = count](const std::string& spec, Shape a, Shape b, int64_t rows, int64_t columns,
                                        int64_t depth, const char* of_one) {
        const Case c{"matmul",
                     {random.Real(dtype, a), random.Real(dtype, b)},
                     {OwnedTensor(dtype, {e, rows, columns})},
                     {{}, {{"spec", spec}}}};
        Check(c, SumBound(depth, 1));
        CheckEach(c, of_one);
      };
      check("esk,enk->esn", {count, m, k}, {count, n, k}, m, n, k, "sk,nk->sn");
      check("esk,ekn->esn", {count, m, k}, {count, k, n}, m, n, k, "sk,kn->sn");
      check("esk,esn->ekn", {count, k, m}, {count, k, n}, m, n, k, "sk,sn->kn");
    }
}

TEST(KernelsMuon, NormsOfManyMatrices) {
  Random random;
  for (const Shape& shape : std::vector<Shape>{{5, 37, 19}, {3, 300, 300}, {1, 7, 5}, {0, 7, 5}, {4, 0, 5}}) {
    const OwnedTensor x = random.Real(kF32, shape);
    const Case squares{"sum_squares", {x}, {OwnedTensor(kF32, {shape[0]})}, {{{"each", 1}}, {}}};
    Check(squares, 0);
    CheckEach(squares, "");
    for (Dtype dtype : {kF32, kBf16}) {
      const Case c{"normalize",
                   {x, random.Real(kF32, {shape[0]}, 1, 9)},
                   {OwnedTensor(dtype, shape)},
                   {{{"eps", 1e-7}, {"each", 1}}, {{"to", std::string(Name(dtype))}}}};
      Check(c, SumBound(4, 1));
      CheckEach(c, "");
    }
  }
}

}  // namespace
}  // namespace espalier::testing
