// The shares of a step: compute, exposed and idle time at every moment, with exact times.
#include <gtest/gtest.h>

#include "espalier/util/error.hpp"
#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

constexpr int kNone = -1, kTp = 0, kCp = 1, kDp = 3, kPp = 4, kHost = 5;

TEST(ExposedAxis, BothDirectionsCountAsPpAndBothCopiesAsHost) {
  for (const auto& [lane, axis] :
       {std::pair{Lane::kTp, CommAxis::kTp}, std::pair{Lane::kCp, CommAxis::kCp}, std::pair{Lane::kEp, CommAxis::kEp},
        std::pair{Lane::kDp, CommAxis::kDp}, std::pair{Lane::kCopyOut, CommAxis::kHost},
        std::pair{Lane::kCopyIn, CommAxis::kHost}, std::pair{Lane::kPpSend, CommAxis::kPp},
        std::pair{Lane::kPpRecv, CommAxis::kPp}})
    EXPECT_EQ(CommAxisOf(lane), axis);
  EXPECT_THROW(CommAxisOf(Lane::kCompute), InvariantError);
  EXPECT_EQ(Name(CommAxis::kTp), "tp");
  EXPECT_EQ(Name(CommAxis::kPp), "pp");
}

/// The next instruction of every lane, with these waits.
struct Heads {
  ByLane<std::vector<Wait>> waits_of;
  LaneHeads heads;

  Heads& Next(Lane lane, std::vector<Wait> waits = {}) {
    waits_of[lane] = std::move(waits);
    heads.head[lane] = Instruction{.lane = lane, .waits = waits_of[lane]};
    return *this;
  }
  Heads& Transfers(Lane lane) {
    heads.transferring[lane] = true;
    return *this;
  }
};

TEST(ExposedAxis, IsWhatTheNextKernelWaitsFor) {
  Heads h;
  h.Next(Lane::kCompute, {{Lane::kTp, 3}, {Lane::kDp, 1}}).Next(Lane::kTp).Next(Lane::kDp).Next(Lane::kCp);
  EXPECT_EQ(ExposedAxis(h.heads), kNone) << "nothing transfers: peers are awaited";
  h.Transfers(Lane::kCp);
  EXPECT_EQ(ExposedAxis(h.heads), kNone) << "the kernel does not wait for cp";
  h.Transfers(Lane::kDp);
  EXPECT_EQ(ExposedAxis(h.heads), kDp);
  h.Transfers(Lane::kTp);
  EXPECT_EQ(ExposedAxis(h.heads), kTp) << "the first in lane order";
  h.heads.done[Lane::kTp] = 3;
  EXPECT_EQ(ExposedAxis(h.heads), kDp) << "the wait for tp is met, though tp transfers more";
  h.Transfers(Lane::kCompute);
  EXPECT_EQ(ExposedAxis(h.heads), kNone) << "a kernel runs";
}

TEST(ExposedAxis, FollowsTheWaitsOfLanes) {
  // The kernel waits for a send, which waits for a gather on dp, which waits for a hop on cp. The hop also waits for
  // the compute lane, which is not transferring.
  Heads h;
  h.Next(Lane::kCompute, {{Lane::kPpSend, 1}})
      .Next(Lane::kPpSend, {{Lane::kDp, 2}})
      .Next(Lane::kDp, {{Lane::kCp, 1}})
      .Next(Lane::kCp, {{Lane::kCompute, 1}})
      .Next(Lane::kPpRecv)
      .Transfers(Lane::kPpRecv);
  EXPECT_EQ(ExposedAxis(h.heads), kNone);
  h.Transfers(Lane::kCp);
  EXPECT_EQ(ExposedAxis(h.heads), kCp);
  h.heads.done[Lane::kDp] = 2;
  EXPECT_EQ(ExposedAxis(h.heads), kNone) << "the send waits for its peer alone";
  h.Transfers(Lane::kPpSend);
  EXPECT_EQ(ExposedAxis(h.heads), kPp);
}

TEST(ExposedAxis, AtTheEndOfTheComputeLaneItWaitsForAll) {
  Heads h;
  h.Next(Lane::kPpSend).Next(Lane::kDp);
  EXPECT_EQ(ExposedAxis(h.heads), kNone);
  h.Transfers(Lane::kPpSend);
  EXPECT_EQ(ExposedAxis(h.heads), kPp);
  EXPECT_EQ(ExposedAxis(LaneHeads{}), kNone) << "everything is at its end";
}

double Sum(const Breakdown& b) {
  double us = b.compute_us + b.idle_us;
  for (CommAxis axis : kCommAxes) us += b.exposed_us[axis];
  return us;
}

TEST(BreakDown, OfAStepByHand) {
  // us       0    10   14   20   26   30   36   40
  // compute  [k1--]         [k2-------]
  // tp            [....][t----]                     waits for its peer, then transfers: k2 waits for it
  // dp       [d-------------------------------]     hidden but for its last part, for which the step waits
  // pp-send                           [....][s]     awaits the receiver, then transfers
  const Track track = HandMade()
                          .Add(Lane::kCompute, {}, {0, 0, 10})
                          .Add(Lane::kTp, {{Lane::kCompute, 1}}, {10, 14, 20})
                          .Add(Lane::kDp, {}, {0, 0, 36})
                          .Add(Lane::kCompute, {{Lane::kTp, 1}}, {20, 20, 30})
                          .Add(Lane::kPpSend, {{Lane::kCompute, 2}}, {30, 36, 40})
                          .Done();
  const Breakdown b = BreakDown(track, 45);
  EXPECT_EQ(b.compute_us, 20);
  EXPECT_EQ(b.exposed_us[kTp], 6);
  EXPECT_EQ(b.hidden_us[kTp], 0);
  EXPECT_EQ(b.exposed_us[kDp], 6) << "from 30 to 36, while the send waits for its peer";
  EXPECT_EQ(b.hidden_us[kDp], 30);
  EXPECT_EQ(b.exposed_us[kPp], 4);
  EXPECT_EQ(b.exposed_us[kCp] + b.hidden_us[kCp], 0);
  EXPECT_EQ(b.idle_us, 4 + 5) << "the peer of tp, and the ranks that end later";
  EXPECT_EQ(Sum(b), 45);
}

TEST(BreakDown, CountsTheTimeOfTwoLanesOfAnAxisOnce) {
  // A send and a recv at the same time, and copies both ways: pp transfers from 0 to 8, host from 2 to 12.
  const Track track = HandMade()
                          .Add(Lane::kPpSend, {}, {0, 0, 6})
                          .Add(Lane::kPpRecv, {}, {0, 3, 8})
                          .Add(Lane::kCopyOut, {}, {0, 2, 9})
                          .Add(Lane::kCopyIn, {}, {0, 5, 12})
                          .Add(Lane::kCompute, {{Lane::kPpRecv, 1}}, {8, 8, 20})
                          .Done();
  const Breakdown b = BreakDown(track, 20);
  EXPECT_EQ(b.exposed_us[kPp], 5) << "the kernel waits for the recv alone, which transfers from 3 on";
  EXPECT_EQ(b.hidden_us[kPp], 3);
  EXPECT_EQ(b.exposed_us[kHost], 0);
  EXPECT_EQ(b.hidden_us[kHost], 10);
  EXPECT_EQ(b.compute_us, 12);
  EXPECT_EQ(b.idle_us, 3);
}

TEST(BreakDown, TakesInstructionsOfNoLength) {
  const Track track = HandMade()
                          .Add(Lane::kTp, {}, {0, 0, 0})
                          .Add(Lane::kTp, {}, {0, 0, 0})
                          .Add(Lane::kTp, {}, {0, 1, 4})
                          .Add(Lane::kCompute, {{Lane::kTp, 2}}, {0, 0, 0})
                          .Add(Lane::kCompute, {{Lane::kTp, 3}}, {4, 4, 4})
                          .Done();
  const Breakdown b = BreakDown(track, 4);
  EXPECT_EQ(b.exposed_us[kTp], 3);
  EXPECT_EQ(b.idle_us, 1);
  EXPECT_EQ(Sum(b), 4);
}

TEST(BreakDown, PutsTheClocksOfALaneInOrder) {
  // Measured: begins before it is ready, and before the previous transfer of its lane ended.
  const Track track = HandMade()
                          .Add(Lane::kTp, {}, {0, 0, 6})
                          .Add(Lane::kTp, {}, {5, 4, 8})
                          .Add(Lane::kCompute, {{Lane::kTp, 2}}, {8, 7, 10})
                          .Done();
  const Breakdown b = BreakDown(track, 10);
  EXPECT_EQ(b.exposed_us[kTp], 8);
  EXPECT_EQ(b.compute_us, 2);
}

TEST(BreakDown, NeedsEveryInstructionOnce) {
  Track track = HandMade().Add(Lane::kTp, {}, {0, 0, 6}).Add(Lane::kCompute, {}, {0, 0, 1}).Done();
  track.spans.pop_back();
  EXPECT_THROW(BreakDown(track, 6), InvariantError);
  track.spans.push_back(track.spans[0]);
  EXPECT_THROW(BreakDown(track, 6), InvariantError);
}

/// Time in which a lane of the axis transfers.
double UnionOfTransfers(const Track& track, CommAxis axis) {
  std::vector<std::pair<double, double>> times;
  for (const Span& span : track.spans) {
    const Lane lane = track.program->instructions[static_cast<size_t>(span.instruction)].lane;
    if (lane != Lane::kCompute && CommAxisOf(lane) == axis) times.emplace_back(span.begin_us, span.end_us);
  }
  std::sort(times.begin(), times.end());
  double us = 0, until = 0;
  for (const auto& [begin, end] : times) {
    us += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return us;
}

TEST(BreakDown, SumsToTheStepOnEveryLayout) {
  for (const Case& layout : AllCases()) {
    const Compilation compilation = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    const Timeline timeline = ReplayPipeline(compilation);
    for (const Track& track : timeline.tracks) {
      const Breakdown b = BreakDown(track, timeline.step_us);
      double kernels = 0;
      for (const Instruction& i : track.program->instructions) kernels += i.lane == Lane::kCompute ? 10 : 0;
      EXPECT_NEAR(b.compute_us, kernels, 1e-6);
      EXPECT_NEAR(Sum(b), timeline.step_us, 1e-6 * timeline.step_us);
      for (CommAxis axis : kCommAxes)
        EXPECT_NEAR(b.exposed_us[axis] + b.hidden_us[axis], UnionOfTransfers(track, axis), 1e-6) << Name(axis);
    }
  }
}

}  // namespace
}  // namespace espalier
