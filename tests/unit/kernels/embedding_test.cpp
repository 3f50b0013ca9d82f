// Rows of tables by token id and by position, and their gradients.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, Embedding) {
  for (int64_t d : {1, 17, 64}) {
    Case c{"embedding", {random_.Integer({3, 7}, 0, 40), random_.Real(T(), {13, d}, -1, 1, {14, 0})}, {}};
    c.outputs = {Empty(T(), {3, 7, d})};
    Check(c, 0);
    EXPECT_GT(c.Tested()[0].Largest(), 0);
  }
}

TEST_P(Kernels, EmbeddingGrad) {
  for (int64_t d : {1, 17, 65, 127}) {
    for (bool accumulate : {false, true}) {
      Case c{"embedding_grad", {random_.Integer({3, 65}, 0, 20), Real({3, 65, d})}, {}, {}, accumulate};
      c.outputs = {random_.Real(kF32, {9, d}, -1, 1, {5, 0})};
      Check(c, SumBound(195, 1));
    }
  }
}

// Tokens of one row, or of some neighbouring rows of a large table, that exceed a device's lists and rounds of loads.
TEST_P(Kernels, EmbeddingGradOfFrequentTokens) {
  for (const auto& [rows, d, ids] : {std::tuple{4, 20, 4}, std::tuple{16400, 4, 200}}) {
    for (bool accumulate : {false, true}) {
      Case c{"embedding_grad", {random_.Integer({2, 701}, 0, ids), Real({2, 701, d})}, {}, {}, accumulate};
      c.outputs = {random_.Real(kF32, {rows, d}, -1, 1)};
      Check(c, SumBound(1402, 1));
    }
  }
}

TEST_P(Kernels, PositionEmbedding) {
  for (int64_t d : {1, 17, 65, 127}) {
    OwnedTensor positions(Dtype::kI32, {11});  // not in order, not from 0: a shard of a reordered sequence
    for (int64_t s = 0; s < 11; ++s) positions.Set(s, static_cast<double>((s * 5 + 3) % 13));
    const Case c{"position_embedding", {Real({3, 11, d}), positions, Real({13, d})}, {Empty(T(), {3, 11, d})}};
    Check(c, SumBound(2, 1));
    CheckInPlace(c, 0, 0);
    for (bool accumulate : {false, true}) {
      for (int64_t batch : {3, 19})
        Check({"position_embedding_grad", {positions, Real({batch, 11, d})}, {F32({13, d})}, {}, accumulate},
              SumBound(batch + 1, 1));
    }
  }
}

TEST_P(Kernels, PositionsThatStartAgainInEachSequence) {
  for (int64_t d : {1, 17, 65}) {
    const OwnedTensor positions = random_.Integer({3, 11}, 0, 12);
    Check({"position_embedding", {Real({3, 11, d}), positions, Real({13, d})}, {Empty(T(), {3, 11, d})}},
          SumBound(2, 1));
    for (bool accumulate : {false, true})
      Check({"position_embedding_grad", {positions, Real({3, 11, d})}, {F32({13, d})}, {}, accumulate},
            SumBound(34, 1));
  }
}

TEST_P(Kernels, PositionsBeyondTheTableAreRefused) {
  if (RefusesOnTheDevice()) GTEST_SKIP() << "the device would be of no further use";
  const Case c{
      "position_embedding", {Real({1, 2, 3}), random_.Integer({2}, 4, 4), Real({4, 3})}, {Empty(T(), {1, 2, 3})}};
  EXPECT_THROW(c.Tested(), InvariantError);
  EXPECT_THROW(c.Reference(), InvariantError);
}

}  // namespace
}  // namespace espalier::testing
