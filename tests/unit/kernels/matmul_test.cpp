// GEMMs in all einsum layouts, with and without a bias.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, Bias) {
  for (int64_t n : {1, 17, 65, 127, 3072}) {
    const Case c{"add_bias", {Real({2, 33, n}), Real({n})}, {Empty(T(), {2, 33, n})}};
    Check(c, SumBound(2, 1));
    CheckInPlace(c, 0, 0);
    for (bool accumulate : {false, true})
      Check({"bias_grad", {c.inputs[0]}, {F32({n})}, {}, accumulate}, SumBound(66, 1));
  }
}

TEST_P(Kernels, MatmulWithBias) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  // cuBLASLt may round a product to bf16 before it adds the bias (seen on an H200). A bias below 3 leaves a small sum
  // of products below 4 only, which are then off by 2^-7 at most.
  const double rounded = T() == Dtype::kBf16 && RefusesOnTheDevice() ? 1.0 / 128 : 0;
  // Empty; small; wider than a widened block of columns; deeper than a slice of the contracted dim.
  for (const Sizes s : {Sizes{1, 1, 1},
                        {3, 17, 0},
                        {0, 3, 4},
                        {3, 0, 4},
                        {3, 17, 65},
                        {127, 65, 17},
                        {129, 200, 131},
                        {5, 4200, 9},
                        {3, 5, 20000}}) {
    const OwnedTensor x = Real({1, s.rows, s.k}), bias = Real({s.n}, -3, 3);
    Check({"matmul", {x, Real({s.k, s.n}), bias}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,kn->bsn")},
          SumBound(s.k, 1) + rounded, false);
    Check({"matmul", {x, Real({s.n, s.k}), bias}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,nk->bsn")},
          SumBound(s.k, 1) + rounded, false);
  }
}

TEST_P(Kernels, Matmul) {
  for (const Sizes s : {Sizes{1, 1, 1},
                        {3, 17, 0},
                        {0, 3, 4},
                        {3, 0, 4},
                        {3, 17, 65},
                        {127, 65, 17},
                        {65, 3, 127},
                        {34, 1, 33},
                        {129, 200, 131}}) {
    const OwnedTensor x = Real({1, s.rows, s.k}), w = Real({s.n, s.k}), dy = Real({1, s.rows, s.n});
    const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
    Check({"matmul", {x, w}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,nk->bsn")}, SumBound(s.k, 1), false);
    Check({"matmul", {dy, w}, {Empty(T(), {1, s.rows, s.k})}, spec("bsn,nk->bsk")}, SumBound(s.n, 1), false);
    for (bool accumulate : {false, true}) {
      Check({"matmul", {dy, x}, {F32({s.n, s.k})}, spec("bsn,bsk->nk"), accumulate}, SumBound(s.rows + 1, 1), false);
      Check({"matmul", {x, dy}, {F32({s.k, s.n})}, spec("bsk,bsn->kn"), accumulate}, SumBound(s.rows + 1, 1), false);
    }
    const OwnedTensor stored_in_out = Real({s.k, s.n});
    Check({"matmul", {x, stored_in_out}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,kn->bsn")}, SumBound(s.k, 1), false);
    Check({"matmul", {dy, stored_in_out}, {Empty(T(), {1, s.rows, s.k})}, spec("bsn,kn->bsk")}, SumBound(s.n, 1),
          false);
  }
}

/// Rows of a matrix, as a separate tensor.
Tensor RowsOf(const OwnedTensor& x, int64_t first, int64_t count) {
  Tensor rows = x.View();
  rows.data = rows.As<std::byte>() + first * rows.shape[1] * SizeOf(rows.dtype);
  rows.shape[0] = count;
  return rows;
}

/// The rows of a matrix in parts that are adjacent in memory.
std::vector<Tensor> PartsOf(const OwnedTensor& x, const std::vector<int64_t>& counts) {
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (int64_t count : counts) {
    parts.push_back(RowsOf(x, first, count));
    first += count;
  }
  return parts;
}

// Several weights act as one with all their rows.
TEST_P(Kernels, JoinedMatmul) {
  const int64_t rows = 13, k = 31;
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{3, 5}, {34, 17, 9}, {1, 1, 200}}) {
    const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const OwnedTensor x = Real({1, rows, k}), w = Real({n, k}), dy = Real({1, rows, n});
    Attributes attributes;
    SetColumns(attributes, counts);
    const auto inputs = [&](const OwnedTensor& first) {
      std::vector<Tensor> all = PartsOf(w, counts);
      all.insert(all.begin(), first.View());
      return all;
    };
    const auto expect = [&](const char* spec, const OwnedTensor& a, const OwnedTensor& b, const OwnedTensor& empty,
                            bool accumulate) {
      const Case whole{"matmul", {a, b}, {empty}, {{}, {{"spec", spec}}}, accumulate};
      OwnedTensor result = empty;
      const bool gradient = &b != &w;
      const std::vector<Tensor> in = gradient ? std::vector{a.View(), b.View()} : inputs(a),
                                out = gradient ? PartsOf(result, counts) : std::vector{result.View()};
      attributes.texts["spec"] = spec;
      RunTested("matmul", {.inputs = in, .outputs = out, .attributes = &attributes, .accumulate = accumulate});
      EXPECT_TRUE(result.SameBits(whole.Tested()[0])) << spec;
      ExpectNear(result, whole.Reference()[0], SumBound(std::max(n, k) + 1, 1), spec);
    };
    expect("bsk,nk->bsn", x, w, Empty(T(), {1, rows, n}), false);
    expect("bsn,nk->bsk", dy, w, Empty(T(), {1, rows, k}), false);
    for (bool accumulate : {false, true}) expect("bsn,bsk->nk", dy, x, F32({n, k}), accumulate);
  }
}

TEST(KernelsMatmul, RefusesWeightsThatAreNoNeighbours) {
  Random random;
  const OwnedTensor x = random.Real(kF32, {1, 2, 3}), w = random.Real(kF32, {9, 3});
  const std::vector<Tensor> in = {x.View(), RowsOf(w, 0, 4), RowsOf(w, 5, 4)};
  OwnedTensor y(kF32, {1, 2, 8});
  const Tensor out = y.View();
  const Attributes attributes{{}, {{"spec", "bsk,nk->bsn"}, {"columns", "4,4"}}};
  try {
    RunTested("matmul", {.inputs = in, .outputs = {&out, 1}, .attributes = &attributes});
    ADD_FAILURE() << "no error";
  } catch (const InvariantError& error) {
    EXPECT_NE(std::string(error.what()).find("[4,3] does not follow [4,3] in memory"), std::string::npos)
        << error.what();
  }
}

// Contracted dims beyond 16384 are summed in slices.
TEST_P(Kernels, DeepMatmul) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const int64_t deep = 20011;
  Check({"matmul", {Real({1, 3, deep}), Real({deep, 5})}, {Empty(T(), {1, 3, 5})}, spec("bsn,nk->bsk")},
        SumBound(deep, 1), false);
  for (bool accumulate : {false, true}) {
    Check({"matmul", {Real({1, deep, 3}), Real({1, deep, 5})}, {F32({3, 5})}, spec("bsn,bsk->nk"), accumulate},
          SumBound(deep, 1), false);
  }
}

// More than one block of each dim of a library or of this program's own kernels, with remainders.
TEST_P(Kernels, LargeWeightGradients) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  for (const Sizes s : {Sizes{288, 544, 256}, {256, 256, 2080}, {1056, 256, 288}, {2087, 272, 300}}) {
    const OwnedTensor x = Real({1, s.rows, s.k}), dy = Real({1, s.rows, s.n});
    for (bool accumulate : {false, true}) {
      Check({"matmul", {dy, x}, {F32({s.n, s.k})}, spec("bsn,bsk->nk"), accumulate}, SumBound(2 * s.rows, 1), false);
      Check({"matmul", {x, dy}, {F32({s.k, s.n})}, spec("bsk,bsn->kn"), accumulate}, SumBound(2 * s.rows, 1), false);
    }
  }
}

TEST_P(Kernels, MatmulGivesTheSameBitsTwice) {
  Case c{"matmul", {Real({2, 65, 127}), Real({33, 127})}, {Empty(T(), {2, 65, 33})}, {{}, {{"spec", "bsk,nk->bsn"}}}};
  EXPECT_TRUE(c.Tested()[0].SameBits(c.Tested()[0]));
}

}  // namespace
}  // namespace espalier::testing
