// From timed steps to rows of a cost table, by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "espalier/program/compile.hpp"
#include "espalier/util/median.hpp"
#include "test_decks.hpp"
#include "train/measuring/kernel_times.hpp"
#include "train/measuring/ladder.hpp"
#include "train/measuring/transfer_times.hpp"

namespace espalier {
namespace {

Compilation CompileSmall(const std::string& layout) {
  return Compile(SmallDeck(DegreesOf(layout)), RanksOf(layout), Purpose::kTrain);
}

/// The same time for every instruction, ms.
std::vector<double> EveryInstruction(const Program& program, double ms) {
  return std::vector<double>(program.instructions.size(), ms);
}

TEST(MedianOf, IsTheMiddle) {
  EXPECT_EQ(MedianOf({3, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 8}), 3);
  EXPECT_EQ(MedianOf({5}), 5);
  EXPECT_TRUE(std::isnan(MedianOf({})));
}

// Three steps of 1, 2 and 9 ms per kernel: each kernel counts as the median, with the gap of its step.
TEST(KernelTimesOf, AreMediansOfCalls) {
  const Compilation c = CompileSmall("111");
  const Program program = MakeProgram(c, {});
  KernelTimes times(program, {});
  for (double ms : {1.0, 9.0, 2.0}) times.Add(EveryInstruction(program, ms), 5);
  EXPECT_EQ(times.steps(), 3);
  int64_t calls = 0;
  for (const KernelSum& sum : times.Sums()) {
    EXPECT_DOUBLE_EQ(sum.us, 2005.0 * static_cast<double>(sum.calls));
    EXPECT_EQ(sum.samples, 3 * sum.calls);
    calls += sum.calls;
  }
  EXPECT_EQ(calls, times.calls());
  EXPECT_GT(times.Spread(), 0);
}

// In each step another half of the calls is disturbed: medians of single calls would miss that every step is slow.
TEST(KernelTimesOf, AddUpToTheMedianStep) {
  const Compilation c = CompileSmall("111");
  const Program program = MakeProgram(c, {});
  KernelTimes times(program, {});
  for (size_t step = 0; step < 3; ++step) {
    std::vector<double> ms = EveryInstruction(program, 1);
    for (size_t i = step; i < ms.size(); i += 3) ms[i] = 4;
    times.Add(ms, 0);
  }
  double sum = 0;
  for (const KernelSum& each : times.Sums()) sum += each.us;
  EXPECT_NEAR(sum / static_cast<double>(times.calls()), 2000, 20);  // a third of 4 ms, the rest 1 ms
}

TEST(KernelRows, AreMeansOverCallsAndRanks) {
  const KernelSum a{OpKind::kAdd, "f32,f32->f32", {8}, 30, 3, 6}, b{OpKind::kAdd, "f32,f32->f32", {8}, 20, 1, 2};
  const auto rows = RowsOf({{a}, {b}});
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows.begin()->second.us, 12.5);
  EXPECT_EQ(rows.begin()->second.samples, 8);
}

/// A step in which every instruction of every rank begins at 100 us and takes 7 us, its recvs 9 us.
Timeline MeasuredStep(const Compilation& c) {
  Timeline step;
  for (int rank = 0; rank < c.mesh.Ranks(); ++rank) {
    Track track;
    track.rank = rank;
    track.program = std::make_shared<const Program>(MakeProgram(c, c.mesh.CoordinateOf(rank)));
    for (int i = 0; i < std::ssize(track.program->instructions); ++i) {
      const Op& op = track.program->graph->op(track.program->instructions[static_cast<size_t>(i)].op);
      track.spans.push_back({i, 10, 100, op.kind == OpKind::kRecv ? 109.0 : 107.0});
    }
    step.tracks.push_back(std::move(track));
  }
  return step;
}

TEST(TransferRows, CountFromTheirBegin) {
  const Compilation c = CompileSmall("222");
  TransferSamples samples;
  AddTransfers(MeasuredStep(c), 4, samples);  // two nodes: one per stage
  const auto rows = RowsOf(samples);
  const auto sends = rows.find({OpKind::kSend, {2, 2, 1}});
  ASSERT_NE(sends, rows.end());
  for (const auto& [bytes, measured] : sends->second) {
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(measured.us, 9);  // time of the recvs alone
  }
  const auto gathers = rows.find({OpKind::kAllGather, {2, 1, 2}});
  ASSERT_NE(gathers, rows.end());
  EXPECT_EQ(gathers->second.begin()->second.us, 7);
  for (const auto& [key, points] : rows) EXPECT_NE(key.kind, OpKind::kRecv);
}

TEST(Ladder, HasEveryPlaceOfAJob) {
  const auto places = [](int ranks, int per_node) {
    std::vector<GroupPlace> all;
    for (const LadderPlace& place : LadderPlaces(ranks, per_node)) all.push_back(place.place);
    return all;
  };
  EXPECT_EQ(places(1, 1), std::vector<GroupPlace>{});
  EXPECT_EQ(places(2, 2), (std::vector<GroupPlace>{{2, 1, 2}}));
  EXPECT_EQ(places(8, 4), (std::vector<GroupPlace>{{2, 1, 2}, {4, 1, 4}, {8, 2, 4}, {2, 2, 1}}));
  EXPECT_EQ(places(3, 1), (std::vector<GroupPlace>{{3, 3, 1}}));
}

}  // namespace
}  // namespace espalier
