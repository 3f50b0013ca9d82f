// Cuts boxes out of a tensor, and puts them into a larger one.
#include "fixture.hpp"

namespace espalier::testing {
namespace {

TEST_P(Kernels, Slice) {
  const OwnedTensor x = random_.Real(T(), {5, 7, 11}, -1, 1, {10, 0, 20});
  Case c{"slice", {x}, {Empty(T(), {3, 2, 4}, {11, 5, 26})}};
  Check(c, 0);
  EXPECT_EQ(c.Tested()[0][0], x[(1 * 7 + 5) * 11 + 6]);
  EXPECT_EQ(c.Tested()[0][3 * 2 * 4 - 1], x[(3 * 7 + 6) * 11 + 9]);
  c.outputs = {Empty(T(), {3, 2, 4}, {13, 5, 26})};
  EXPECT_THROW(c.Tested(), InvariantError);
}

// Whole inner dims are one long row, which many of a device's blocks share; with many rows no blocks are left to share
// one.
TEST_P(Kernels, SliceOfLongRows) {
  for (int64_t d : {1000, 1001}) {
    const OwnedTensor x = Real({2, 5, d});
    for (const Shape& shape : {Shape{1, 5, d}, Shape{2, 3, d}})
      Check({"slice", {x}, {OwnedTensor(T(), shape, {2 - shape[0], 5 - shape[1], 0})}}, 0);
  }
  const OwnedTensor x = Real({300, 70, 9});
  Check({"slice", {x}, {OwnedTensor(T(), {290, 70, 8}, {7, 0, 1})}}, 0);
}

TEST_P(Kernels, Pad) {
  const OwnedTensor x = random_.Real(T(), {3, 2, 4}, -1, 1, {11, 5, 26});
  Case c{"pad", {x}, {Empty(T(), {5, 7, 11}, {10, 0, 20})}};
  Check(c, 0);
  const OwnedTensor sum = c.Tested()[0];
  c.attributes.numbers["max"] = 1;
  const OwnedTensor maximum = c.Tested()[0];
  EXPECT_TRUE(maximum.SameBits(c.Reference()[0]));
  for (int64_t i = 0; i < 5 * 7 * 11; ++i) {
    const int64_t a = i / 77 - 1, b = i / 11 % 7 - 5, d = i % 11 - 6;
    const bool inside = a >= 0 && a < 3 && b >= 0 && d >= 0 && d < 4;
    EXPECT_EQ(sum[i], inside ? x[(a * 2 + b) * 4 + d] : 0) << i;
    EXPECT_EQ(maximum[i], inside ? x[(a * 2 + b) * 4 + d] : -std::numeric_limits<double>::infinity()) << i;
  }
  c.inputs = {Empty(T(), {0, 2, 4}, {11, 5, 26})};
  EXPECT_TRUE(c.Tested()[0].SameBits(c.Reference()[0]));
}

// Rows 4 to 9 of [3,5,d] are in two sequences; widths that fill 16 bytes, and odd ones.
TEST_P(Kernels, ChunksOfRows) {
  for (int64_t d : {8, 11}) {
    const OwnedTensor x = Real({3, 5, d}), chunk = Real({1, 6, d});
    const Attributes first{{{"first", 4}}, {}};
    const Case take{"take_rows", {x}, {Empty(T(), {1, 6, d})}, first};
    Check(take, 0);
    EXPECT_EQ(take.Tested()[0][6 * d - 1], x[10 * d - 1]);
    const Case put{"put_rows", {chunk}, {x}, first};
    Check(put, 0);
    const OwnedTensor whole = put.Tested()[0];
    for (int64_t i = 0; i < 15 * d; ++i) EXPECT_EQ(whole[i], i >= 4 * d && i < 10 * d ? chunk[i - 4 * d] : x[i]) << i;
    Case over = take;
    over.attributes.numbers["first"] = 10;
    EXPECT_THROW(over.Tested(), InvariantError);
  }
  const OwnedTensor ids = random_.Integer({3, 5}, 0, 90);
  const OwnedTensor taken = Case{"take_rows", {ids}, {Empty(Dtype::kI32, {1, 2})}, {{{"first", 13}}, {}}}.Tested()[0];
  EXPECT_EQ(taken[0], ids[13]);
  EXPECT_EQ(taken[1], ids[14]);
}

}  // namespace
}  // namespace espalier::testing
