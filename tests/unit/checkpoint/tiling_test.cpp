// Which rank writes which part of a tensor, and copies between boxes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "checkpoint/transfer/destination.hpp"
#include "checkpoint/transfer/pieces.hpp"
#include "checkpoint_testing.hpp"
#include "espalier/checkpoint/runs.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Pieces, ReplicasAreWrittenOnceAndShared) {
  const Mesh mesh({2, 2, 1, 1, 2});
  const auto tensor = [](const char* name, const char* type, int stage) {
    return StateTensor{name, ParseType(type), stage};
  };
  const std::vector<StateTensor> tensors = {tensor("a", "f32[5{tp},4]", 0), tensor("b", "f32[3]", 0),
                                            tensor("c", "f32[1{tp}]", 1), tensor("d", "f32[2]", 0)};
  // Ranks 0..3 are stage 0: (dp 0, tp 0), (dp 0, tp 1), (dp 1, tp 0), (dp 1, tp 1).
  const AxisSet replicate = {Axis::kDpReplicate}, all = {Axis::kDpReplicate, Axis::kTp};
  EXPECT_THAT(PlanPieces(tensors, mesh),
              ElementsAre(StatePiece{0, {{0, 3}, {0, 4}}, 0, 0, replicate},
                          StatePiece{0, {{3, 5}, {0, 4}}, 1, 1, replicate}, StatePiece{1, {{0, 3}}, 2, 0, all},
                          StatePiece{2, {{0, 1}}, 4, 4, replicate}, StatePiece{3, {{0, 2}}, 3, 0, all}));
}

TEST(Pieces, WritersShareTheBytes) {
  const Mesh mesh({1, 3, 1, 1, 1});
  std::vector<StateTensor> tensors;
  for (int i = 0; i < 40; ++i) tensors.push_back({fmt::format("t{}", i), MakeType(Dtype::kF32, {i % 7 + 1}), 0});
  std::array<int64_t, 3> elements{};
  for (const StatePiece& piece : PlanPieces(tensors, mesh))
    elements[static_cast<size_t>(piece.writer)] += piece.box[0].Extent();
  const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
  EXPECT_LE(*most - *least, 7);
}

TEST(Tiling, NamesWhatIsWrong) {
  const auto error = [](const Shape& shape, const std::vector<Box>& boxes) { return TilingError(shape, boxes); };
  EXPECT_EQ(error({4, 3}, {{{0, 4}, {0, 3}}}), "");
  EXPECT_EQ(error({4, 3}, {{{2, 4}, {0, 2}}, {{0, 2}, {0, 2}}, {{0, 2}, {2, 3}}, {{2, 4}, {2, 3}}}), "");
  const std::vector<Box> stacked = {{{0, 2}, {0, 3}}, {{2, 3}, {0, 3}}, {{3, 4}, {0, 1}}, {{3, 4}, {1, 3}}};
  EXPECT_EQ(error({4, 3}, stacked), "") << "rows of one part, columns of the other";
  EXPECT_THAT(error({5, 3}, stacked), HasSubstr("leaves a gap")) << "nothing below";
  EXPECT_THAT(error({4, 3}, {{{0, 2}, {0, 3}}, {{3, 4}, {0, 1}}, {{3, 4}, {1, 3}}}), HasSubstr("leaves a gap"));
  EXPECT_THAT(error({4, 3}, {{{0, 3}, {0, 3}}, {{2, 4}, {0, 1}}, {{2, 4}, {1, 3}}}), HasSubstr("overlaps"));
  EXPECT_THAT(error({4, 3}, {{{0, 3}, {0, 3}}, {{3, 4}, {0, 1}}, {{3, 4}, {2, 3}}}), HasSubstr("leaves a gap"));
  EXPECT_EQ(error({4}, {}), "no pieces");
  EXPECT_EQ(error({4}, {{{1, 4}}}), "dim 0 starts at 1");
  EXPECT_THAT(error({4}, {{{0, 2}}, {{3, 4}}}), HasSubstr("[0:2] overlaps another one or leaves a gap in dim 0"));
  EXPECT_THAT(error({4}, {{{0, 3}}, {{2, 4}}}), HasSubstr("[0:3] overlaps"));
  EXPECT_THAT(error({4}, {{{0, 2}}, {{2, 3}}}), HasSubstr("[2:3] overlaps another one or leaves a gap"));
  EXPECT_EQ(error({4}, {{{0, 4}}, {{0, 4}}}), "a piece appears twice");
  EXPECT_EQ(error({2, 2}, {{{0, 1}, {0, 1}}, {{1, 2}, {1, 2}}}), "2 pieces do not fill a grid");
  EXPECT_EQ(error({2, 2}, {{{0, 1}, {0, 1}}, {{0, 1}, {1, 2}}, {{1, 2}, {0, 1}}}), "3 pieces do not fill a grid");
  EXPECT_EQ(error({4}, {{{0, 4}, {0, 1}}}), "piece [0:4,0:1] in a tensor of 1 dims");
}

TEST(Runs, CopyEveryCommonElementOnce) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 500; ++trial) {
    Box from, to;
    const size_t dims = 1 + random() % 4;
    for (size_t d = 0; d < dims; ++d) {
      const auto range = [&] {
        const int64_t begin = random() % 4;
        return Range{begin, begin + 1 + static_cast<int64_t>(random() % 5)};
      };
      from.push_back(range());
      to.push_back(random() % 3 == 0 ? from.back() : range());
    }
    std::vector<int> source(static_cast<size_t>(Volume(ExtentsOf(from)))),
        target(static_cast<size_t>(Volume(ExtentsOf(to))), -1);
    const auto number = [](const Box& box, int64_t local) {  // number of an element in the whole tensor
      const Shape extents = ExtentsOf(box);
      int64_t element = 0, scale = 1;
      for (size_t d = box.size(); d-- > 0; local /= extents[d], scale *= 100)
        element += (box[d].begin + local % extents[d]) * scale;
      return static_cast<int>(element);
    };
    const auto inside = [](const Box& box, int element) {
      for (size_t d = box.size(); d-- > 0; element /= 100)
        if (element % 100 < box[d].begin || element % 100 >= box[d].end) return false;
      return true;
    };
    for (size_t i = 0; i < source.size(); ++i) source[i] = number(from, static_cast<int64_t>(i));
    int64_t last = -1;
    for (Runs runs(from, to); !runs.Done(); runs.Next()) {
      EXPECT_GT(runs.From(), last);
      last = runs.From();
      std::copy_n(source.data() + runs.From(), runs.Count(), target.data() + runs.To());
    }
    for (size_t i = 0; i < target.size(); ++i) {
      const int element = number(to, static_cast<int64_t>(i));
      ASSERT_EQ(target[i], inside(from, element) ? element : -1) << ToString(from) << " " << ToString(to);
    }
  }
}

TEST(Destination, StridedRunsLeaveWhatLiesBetween) {
  constexpr int64_t kRows = 3000, kColumns = 1000, kBegin = 100, kEnd = 350;  // 12 MB: several windows
  std::vector<float> expected(kRows * kColumns), run(kEnd - kBegin);
  std::iota(expected.begin(), expected.end(), 0.0f);
  RemoteArena arena(kRows * kColumns * int64_t{sizeof(float)});
  arena.Write(arena.At(0, 0), expected.data(), arena.bytes());
  const LocalTensor tensor{nullptr, arena.At(0, 0), &arena};
  Destination out(tensor);
  for (int64_t r = 0; r < kRows; ++r) {
    std::fill(run.begin(), run.end(), static_cast<float>(-r));
    std::copy(run.begin(), run.end(), expected.begin() + r * kColumns + kBegin);
    out.Put((r * kColumns + kBegin) * int64_t{sizeof(float)}, reinterpret_cast<const char*>(run.data()),
            std::ssize(run) * int64_t{sizeof(float)});
  }
  out.Flush();
  std::vector<float> found(expected.size());
  arena.Read(tensor.data, found.data(), arena.bytes());
  EXPECT_TRUE(found == expected);
}

}  // namespace
}  // namespace espalier
