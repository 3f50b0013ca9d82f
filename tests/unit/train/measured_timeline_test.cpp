// Combines the clocks of ranks into one timeline.
#include "train/reporting/measured_timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;

TEST(ClockOffsets, AreTheMedianOverBarriers) {
  // Node b is 1000 us ahead; its first rank leaves the barriers between 5 us early and 40 us late.
  const std::vector<MeasuredRank> ranks = {{"a", {100, 200, 300}, 0, {}, {}},
                                           {"a", {109, 250, 301}, 0, {}, {}},
                                           {"b", {1095, 1203, 1340}, 0, {}, {}},
                                           {"b", {0, 0, 0}, 0, {}, {}}};
  EXPECT_THAT(ClockOffsets(ranks), ElementsAre(0, 0, 1003, 1003)) << "ranks of a node share a clock";
}

TEST(TracedRanks, AreAllOrOnePipeline) {
  const Mesh mesh({4, 1, 2, 1, 8});
  EXPECT_EQ(TracedRanks(mesh, 64).size(), 64);
  EXPECT_EQ(TracedRanks(mesh, 64)[63], 63);
  EXPECT_THAT(TracedRanks(mesh, 63), ElementsAre(0, 16, 32, 48));
}

TEST(MeasuredTimeline, PutsRanksOnOneClock) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("112")), 2, Purpose::kTrain);
  const auto program = std::make_shared<const Program>(MakeProgram(compilation, {}));
  // Rank 1 is on another node, 5000 us ahead, and begins 3 us after rank 0. Instructions take 10 us each.
  std::vector<MeasuredRank> ranks = {{"a", {1, 2, 3}, 100, {}, {}}, {"b", {5001, 5002, 5003}, 5103, {}, {}}};
  for (MeasuredRank& rank : ranks)
    for (size_t i = 0; i < program->instructions.size(); ++i) {
      rank.ready_us.push_back(10.0 * static_cast<double>(i));
      rank.end_us.push_back(10.0 * static_cast<double>(i + 1));
    }
  const Timeline timeline = MeasuredTimeline("title", ranks, {0, 1}, [&](int) { return program; });
  const double length = 10 * static_cast<double>(program->instructions.size());
  EXPECT_EQ(timeline.origin, "measured");
  EXPECT_EQ(timeline.step_us, length + 3);
  ASSERT_EQ(timeline.tracks.size(), 2);
  EXPECT_EQ(timeline.tracks[1].rank, 1);
  int transfers = 0;
  for (size_t i = 0; i < program->instructions.size(); ++i) {
    const Span &first = timeline.tracks[0].spans[i], &second = timeline.tracks[1].spans[i];
    const bool transfer = program->instructions[i].lane != Lane::kCompute;
    EXPECT_EQ(first.ready_us, 10.0 * static_cast<double>(i));
    EXPECT_EQ(second.ready_us, first.ready_us + 3);
    EXPECT_EQ(first.begin_us, first.ready_us + (transfer ? 3 : 0)) << "transfers wait for rank 1";
    transfers += transfer;
  }
  EXPECT_GT(transfers, 0);
  const Breakdown mean = MeanBreakdown(timeline);
  double sum = mean.compute_us + mean.idle_us;
  for (const double us : mean.exposed_us) sum += us;
  EXPECT_NEAR(sum, timeline.step_us, 1e-6);
  EXPECT_NEAR(mean.compute_us, length - 10.0 * transfers, 1e-6);
}

TEST(MeasuredTimeline, NeedsEveryInstruction) {
  const Compilation compilation = Compile(SmallDeck(), 1, Purpose::kTrain);
  const auto program = std::make_shared<const Program>(MakeProgram(compilation, {}));
  EXPECT_THROW(MeasuredTimeline("", {{"a", {}, 0, {1, 2}, {3, 4}}}, {0}, [&](int) { return program; }), InvariantError);
}

}  // namespace
}  // namespace espalier
