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
          SumBound(s.k, 1), false);
    Check({"matmul", {x, Real({s.n, s.k}), bias}, {Empty(T(), {1, s.rows, s.n})}, spec("bsk,nk->bsn")},
          SumBound(s.k, 1), false);
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

TEST_P(Kernels, MatmulGivesTheSameBitsTwice) {
  Case c{"matmul", {Real({2, 65, 127}), Real({33, 127})}, {Empty(T(), {2, 65, 33})}, {{}, {{"spec", "bsk,nk->bsn"}}}};
  EXPECT_TRUE(c.Tested()[0].SameBits(c.Tested()[0]));
}

}  // namespace
}  // namespace espalier::testing
