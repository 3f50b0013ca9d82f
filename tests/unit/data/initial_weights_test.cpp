// Initial weights: the same bits in every layout.
#include "espalier/data/initial_weights.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

TEST(InitialWeights, EveryBoxHoldsTheBitsOfTheWhole) {
  const Shape shape = {5, 7, 9};
  std::vector<float> whole(5 * 7 * 9);
  FillNormal(whole.data(), 1234, "w", shape, {{0, 5}, {0, 7}, {0, 9}}, 0.02);
  for (size_t e : {size_t{0}, size_t{100}, whole.size() - 1}) {
    EXPECT_EQ(whole[e], static_cast<float>(0.02 * NormalAt(1234, "w", int64_t(e))));
  }
  const std::vector<Box> boxes = {{{0, 5}, {2, 5}, {0, 9}}, {{1, 4}, {0, 7}, {0, 9}}, {{2, 3}, {3, 4}, {8, 9}},
                                  {{0, 5}, {0, 7}, {4, 9}}, {{1, 5}, {6, 7}, {1, 2}}, {{3, 3}, {0, 7}, {0, 9}}};
  for (const Box& box : boxes) {
    std::vector<float> part(static_cast<size_t>(Volume(ExtentsOf(box))) + 1, 99.0f);
    FillNormal(part.data(), 1234, "w", shape, box, 0.02);
    size_t i = 0;
    for (int64_t a = box[0].begin; a < box[0].end; ++a)
      for (int64_t b = box[1].begin; b < box[1].end; ++b)
        for (int64_t c = box[2].begin; c < box[2].end; ++c, ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), std::bit_cast<uint32_t>(whole[size_t((a * 7 + b) * 9 + c)]));
    EXPECT_EQ(part[i], 99.0f);
  }
}

TEST(InitialWeights, VectorsAndScalars) {
  float x[4];
  FillNormal(x, 1, "v", {7}, {{3, 7}}, 2.0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(x[i], static_cast<float>(2.0 * NormalAt(1, "v", 3 + i)));
  FillNormal(x, 1, "s", {}, {}, 1.0);
  EXPECT_EQ(x[0], static_cast<float>(NormalAt(1, "s", 0)));
  EXPECT_THROW(FillNormal(x, 1, "v", {7}, {{3, 8}}, 1.0), InvariantError);
}

}  // namespace
}  // namespace espalier
