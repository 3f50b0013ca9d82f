// The order of samples.
#include "espalier/data/permutation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;

TEST(PermutationTest, IsABijection) {
  for (int64_t n : {1, 2, 3, 5, 13, 64, 65, 1001, 4097}) {
    const Permutation permutation(n, 42, 3);
    std::vector<int> hits(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) ++hits[static_cast<size_t>(permutation(i))];
    EXPECT_EQ(std::count(hits.begin(), hits.end(), 1), n) << n;
  }
}

// Computed with Python's integers from doc/numerics.md.
TEST(PermutationTest, IsThatOfTheDocument) {
  const auto all = [](int64_t epoch) {
    std::vector<int64_t> images;
    for (int64_t i = 0; i < 13; ++i) images.push_back(Permutation(13, 7, epoch)(i));
    return images;
  };
  EXPECT_THAT(all(0), ElementsAre(9, 1, 11, 8, 2, 6, 5, 12, 10, 3, 0, 7, 4));
  EXPECT_THAT(all(1), ElementsAre(0, 2, 7, 3, 1, 11, 5, 4, 8, 6, 12, 9, 10));
}

TEST(PermutationTest, ScattersEvenly) {
  // The first 100 positions of 200 epochs over 1001 samples: every sample comes up about 20 times.
  std::vector<int> hits(1001);
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const Permutation permutation(1001, 5, epoch);
    for (int64_t i = 0; i < 100; ++i) ++hits[static_cast<size_t>(permutation(i))];
  }
  double chi2 = 0;
  for (int h : hits) chi2 += (h - 19.98) * (h - 19.98) / 19.98;
  // Without replacement inside an epoch: mean 1000 * 0.9, standard deviation about 40.
  EXPECT_NEAR(chi2, 900.0, 200.0);
}

TEST(PermutationTest, HandlesLargeCounts) {
  const int64_t n = (int64_t{1} << 40) + 3;
  const Permutation permutation(n, 1, 0);
  EXPECT_NE(permutation(0), permutation(n - 1));
  EXPECT_LT(permutation(n - 1), n);
  EXPECT_THROW(permutation(n), InvariantError);
}

TEST(SampleIndexTest, WrapsByEpoch) {
  EXPECT_EQ(SampleIndex(16, 7, 1, Order::kSequential), 2);
  EXPECT_EQ(SampleIndex(16, 7, 1, Order::kShuffled), Permutation(7, 1, 2)(2));
  EXPECT_THROW(SampleIndex(-1, 7, 1, Order::kSequential), InvariantError);
}

}  // namespace
}  // namespace espalier
