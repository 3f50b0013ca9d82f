// Schedules: exact job lists, the replay's times against closed forms, pictures, and lists that must be refused.
#include "espalier/schedule/schedule.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "espalier/util/error.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Lists(const Schedule& schedule) {
  std::vector<std::string> lists;
  for (int stage = 0; stage < schedule.stages; ++stage) lists.push_back(ToString(schedule, stage));
  return lists;
}

// A job from "F3", "BW0", "W1.2" (microbatch.chunk; without a chunk it is the stage's own) or "F1.0&BW0.1".
Job ParseJob(const std::string& text, int stage) {
  Job job;
  std::istringstream groups(text);
  for (std::string group; std::getline(groups, group, '&');) {
    const size_t digits = group.find_first_of("0123456789");
    const size_t dot = group.find('.');
    const int microbatch = std::stoi(group.substr(digits));
    const int chunk = dot == std::string::npos ? stage : std::stoi(group.substr(dot + 1));
    for (char c : group.substr(0, digits)) {
      const Role role = c == 'F' ? Role::kF : c == 'B' ? Role::kB : c == 'W' ? Role::kW : Role::kS;
      job.parts.push_back({chunk, role, microbatch});
    }
  }
  return job;
}

Schedule ByHand(int microbatches, std::vector<int> stage_of_chunk, const std::vector<std::string>& lists) {
  Schedule schedule{ScheduleKind::k1F1B, static_cast<int>(lists.size()), microbatches, std::move(stage_of_chunk), {}};
  for (size_t stage = 0; stage < lists.size(); ++stage) {
    schedule.jobs.emplace_back();
    std::istringstream words(lists[stage]);
    for (std::string word; words >> word;) schedule.jobs.back().push_back(ParseJob(word, static_cast<int>(stage)));
  }
  return schedule;
}

std::string Refusal(const Schedule& schedule) {
  try {
    Validate(schedule);
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JobLists, GPipe) {
  const std::string all = "F0 F1 F2 F3 F4 F5 F6 F7 BW0 BW1 BW2 BW3 BW4 BW5 BW6 BW7";
  EXPECT_THAT(Lists(GPipe(4, 8)), ElementsAre(all, all, all, all));
}

TEST(JobLists, ForwardThenBackwardOfAnyChunks) {
  const Schedule v = ForwardThenBackward({0, 1, 1, 0}, 1);
  EXPECT_THAT(Lists(v), ElementsAre("F0.0 F0.3 BW0.3 BW0.0", "F0.1 F0.2 BW0.2 BW0.1"));
  Validate(v);
  EXPECT_THAT(Lists(ForwardThenBackward({0, 1, 0, 1}, 1)),
              ElementsAre("F0.0 F0.2 BW0.2 BW0.0", "F0.1 F0.3 BW0.3 BW0.1"));
}

TEST(JobLists, OneFOneBMoreMicrobatchesThanStages) {
  EXPECT_THAT(Lists(OneFOneB(4, 8)), ElementsAre("F0 F1 F2 F3 BW0 F4 BW1 F5 BW2 F6 BW3 F7 BW4 BW5 BW6 BW7",
                                                 "F0 F1 F2 BW0 F3 BW1 F4 BW2 F5 BW3 F6 BW4 F7 BW5 BW6 BW7",
                                                 "F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 F5 BW4 F6 BW5 F7 BW6 BW7",
                                                 "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5 F6 BW6 F7 BW7"));
}

TEST(JobLists, OneFOneBFewerMicrobatchesThanStages) {
  EXPECT_THAT(Lists(OneFOneB(4, 2)), ElementsAre("F0 F1 BW0 BW1", "F0 F1 BW0 BW1", "F0 F1 BW0 BW1", "F0 BW0 F1 BW1"));
  EXPECT_THAT(Lists(OneFOneB(4, 1)), ElementsAre("F0 BW0", "F0 BW0", "F0 BW0", "F0 BW0"));
}

TEST(JobLists, OneFOneBAsManyMicrobatchesAsStages) {
  EXPECT_THAT(Lists(OneFOneB(4, 4)), ElementsAre("F0 F1 F2 F3 BW0 BW1 BW2 BW3", "F0 F1 F2 BW0 F3 BW1 BW2 BW3",
                                                 "F0 F1 BW0 F2 BW1 F3 BW2 BW3", "F0 BW0 F1 BW1 F2 BW2 F3 BW3"));
}

TEST(JobLists, OneFOneBMicrobatchesNoMultipleOfStages) {
  EXPECT_THAT(Lists(OneFOneB(4, 6)),
              ElementsAre("F0 F1 F2 F3 BW0 F4 BW1 F5 BW2 BW3 BW4 BW5", "F0 F1 F2 BW0 F3 BW1 F4 BW2 F5 BW3 BW4 BW5",
                          "F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 F5 BW4 BW5", "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5"));
}

TEST(JobLists, BackwardIsOneJobOfTwoParts) {
  const Schedule schedule = OneFOneB(3, 5);
  EXPECT_EQ(schedule.stage_of_chunk, (std::vector<int>{0, 1, 2}));
  const std::vector<JobPart> last = {{1, Role::kB, 4}, {1, Role::kW, 4}};
  EXPECT_EQ(schedule.jobs[1].back().parts, last);
}

TEST(JobLists, OneStage) {
  EXPECT_THAT(Lists(OneFOneB(1, 3)), ElementsAre("F0 BW0 F1 BW1 F2 BW2"));
  EXPECT_THAT(Lists(GPipe(1, 2)), ElementsAre("F0 F1 BW0 BW1"));
  EXPECT_THAT(Lists(ForwardOnly({0, 1}, 3)), ElementsAre("F0 F1 F2", "F0 F1 F2"));
}

TEST(JobLists, ChunksAndWovenPartsAreNamed) {
  const Schedule schedule = ByHand(2, {0, 1, 1, 0}, {"F0.0 F1.0&BW0.3", "F0.1 F0.2 B0.2 W0.2"});
  EXPECT_THAT(Lists(schedule), ElementsAre("F0.0 F1.0&BW0.3", "F0.1 F0.2 B0.2 W0.2"));
}

TEST(JobLists, Interleaved) {
  EXPECT_THAT(Lists(Interleaved(2, 2, 4)),
              ElementsAre("F0.0 F1.0 F0.2 F1.2 F2.0 BW0.2 F3.0 BW1.2 F2.2 BW0.0 F3.2 BW1.0 BW2.2 BW3.2 BW2.0 BW3.0",
                          "F0.1 F1.1 F0.3 BW0.3 F1.3 BW1.3 F2.1 BW0.1 F3.1 BW1.1 F2.3 BW2.3 F3.3 BW3.3 BW2.1 BW3.1"));
  const Schedule four = Interleaved(4, 2, 8);
  EXPECT_EQ(four.stage_of_chunk, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(ToString(four, 0),
            "F0.0 F1.0 F2.0 F3.0 F0.4 F1.4 F2.4 F3.4 F4.0 F5.0 F6.0 BW0.4 F7.0 BW1.4 F4.4 BW2.4 F5.4 BW3.4 F6.4 BW0.0 "
            "F7.4 BW1.0 BW2.0 "
            "BW3.0 BW4.4 BW5.4 BW6.4 BW7.4 BW4.0 BW5.0 BW6.0 BW7.0");
  EXPECT_EQ(ToString(four, 3),
            "F0.3 F1.3 F2.3 F3.3 F0.7 BW0.7 F1.7 BW1.7 F2.7 BW2.7 F3.7 BW3.7 F4.3 BW0.3 F5.3 BW1.3 F6.3 BW2.3 F7.3 "
            "BW3.3 F4.7 BW4.7 "
            "F5.7 BW5.7 F6.7 BW6.7 F7.7 BW7.7 BW4.3 BW5.3 BW6.3 BW7.3");
}

TEST(JobLists, InterleavedWithARest) {
  // Five microbatches on two stages: a block of three and a rest of two.
  EXPECT_EQ(
      ToString(Interleaved(2, 2, 5), 0),
      "F0.0 F1.0 F2.0 F0.2 F1.2 F2.2 BW0.2 F3.0 BW1.2 F4.0 BW2.2 F3.2 BW0.0 F4.2 BW1.0 BW2.0 BW3.2 BW4.2 BW3.0 BW4.0");
}

TEST(JobLists, JointJobsHoldABackwardThatFollowsOneForwardLater) {
  const SteadyState joint = SteadyState::kJoint;
  EXPECT_THAT(Lists(OneFOneB(2, 5, joint)),
              ElementsAre("F0 F1 F2 F3&BW0 F4&BW1 BW2 BW3 BW4", "F0 F1&BW0 F2&BW1 F3&BW2 F4&BW3 BW4"));
  EXPECT_THAT(Lists(OneFOneB(3, 2, joint)), ElementsAre("F0 F1 BW0 BW1", "F0 F1 BW0 BW1", "F0 F1&BW0 BW1"));
  EXPECT_THAT(Lists(OneFOneB(1, 2, joint)), ElementsAre("F0 F1&BW0 BW1"));
  EXPECT_THAT(Lists(Interleaved(2, 2, 4, joint)),
              ElementsAre("F0.0 F1.0 F0.2 F1.2 F2.0 F3.0&BW0.2 F2.2&BW1.2 F3.2&BW0.0 BW1.0 BW2.2 BW3.2 BW2.0 BW3.0",
                          "F0.1 F1.1 F0.3 F1.3&BW0.3 F2.1&BW1.3 F3.1&BW0.1 F2.3&BW1.1 F3.3&BW2.3 BW3.3 BW2.1 BW3.1"));
}

TEST(JobLists, ZeroBubbleH1) {
  EXPECT_THAT(Lists(ZeroBubbleH1(2, 4)),
              ElementsAre("F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3", "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"));
  EXPECT_THAT(Lists(ZeroBubbleH1(4, 8)),
              ElementsAre("F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7",
                          "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7",
                          "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7",
                          "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7"));
  EXPECT_THAT(Lists(ZeroBubbleH1(4, 2)),
              ElementsAre("F0 F1 B0 W0 B1 W1", "F0 F1 B0 B1 W0 W1", "F0 F1 B0 B1 W0 W1", "F0 B0 F1 B1 W0 W1"));
}

TEST(JobLists, ZeroBubbleV) {
  EXPECT_THAT(Lists(ZeroBubbleV(2, 4)),
              ElementsAre("F0.0 F1.0 F2.0 F0.3 B0.3 W0.3 F1.3 B1.3 W1.3 F3.0 B0.0 W0.0 F2.3 B2.3 W2.3 B1.0 W1.0 F3.3 "
                          "B3.3 W3.3 B2.0 W2.0 B3.0 W3.0",
                          "F0.1 F0.2 F1.1 F1.2 B0.2 W0.2 F2.1 B0.1 W0.1 F2.2 B1.2 W1.2 F3.1 B1.1 W1.1 F3.2 B2.2 W2.2 "
                          "B2.1 B3.2 B3.1 W2.1 W3.2 W3.1"));
  EXPECT_THAT(Lists(ZeroBubbleV(2, 1)), ElementsAre("F0.0 F0.3 B0.3 W0.3 B0.0 W0.0", "F0.1 F0.2 B0.2 W0.2 B0.1 W0.1"));
  const Schedule four = ZeroBubbleV(4, 8);
  EXPECT_EQ(four.stage_of_chunk, (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(ToString(four, 0),
            "F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F0.7 B0.7 W0.7 F1.7 B1.7 W1.7 F2.7 B2.7 W2.7 F3.7 B3.7 W3.7 F7.0 B0.0 "
            "W0.0 F4.7 B4.7 W4.7 "
            "B1.0 W1.0 F5.7 B5.7 W5.7 B2.0 W2.0 F6.7 B6.7 W6.7 B3.0 W3.0 F7.7 B7.7 W7.7 B4.0 W4.0 B5.0 W5.0 B6.0 W6.0 "
            "B7.0 W7.0");
  EXPECT_EQ(ToString(four, 3),
            "F0.3 F0.4 F1.3 F1.4 F2.3 F2.4 F3.3 F3.4 B0.4 W0.4 F4.3 B0.3 W0.3 F4.4 B1.4 W1.4 F5.3 B1.3 W1.3 F5.4 B2.4 "
            "W2.4 F6.3 B2.3 W2.3 "
            "F6.4 B3.4 W3.4 F7.3 B3.3 W3.3 F7.4 B4.4 W4.4 B4.3 B5.4 B5.3 B6.4 B6.3 B7.4 B7.3 W4.3 W5.4 W6.4 W7.4 W5.3 "
            "W6.3 W7.3");
}

TEST(JobLists, DualPipeV) {
  EXPECT_THAT(Lists(DualPipeV(2, 4)),
              ElementsAre("F0.0 F1.0 F2.0 F0.3 B0.3 W0.3 F1.3 F3.0&BW1.3 F2.3&BW0.0 BW2.3 F3.3&BW1.0 BW3.3 B2.0 W2.0 "
                          "B3.0 W3.0",
                          "F0.1 F0.2 F1.1 F1.2 F2.1 BW0.2 F2.2&BW0.1 F3.1&BW1.2 F3.2&BW1.1 BW2.2 BW2.1 B3.2 B3.1 W3.2 "
                          "W3.1"));
  const Schedule four = DualPipeV(4, 8);
  EXPECT_EQ(ToString(four, 1),
            "F0.1 F1.1 F2.1 F3.1 F4.1 F0.6 F5.1 F1.6 B0.6 W0.6 F2.6 B1.6 W1.6 F3.6 F6.1&BW2.6 F4.6&BW0.1 F7.1&BW3.6 "
            "F5.6&BW1.1 BW4.6 "
            "F6.6&BW2.1 BW5.6 F7.6&BW3.1 BW6.6 BW4.1 B7.6 B5.1 W7.6 B6.1 W5.1 B7.1 W6.1 W7.1");
  EXPECT_EQ(ToString(four, 3),
            "F0.3 F0.4 F1.3 F1.4 F2.3 F2.4 F3.3 F3.4 F4.3 BW0.4 F4.4&BW0.3 F5.3&BW1.4 F5.4&BW1.3 F6.3&BW2.4 F6.4&BW2.3 "
            "F7.3&BW3.4 "
            "F7.4&BW3.3 BW4.4 BW4.3 BW5.4 BW5.3 B6.4 B6.3 B7.4 B7.3 W6.4 W6.3 W7.4 W7.3");
}

TEST(JobLists, ForwardOnlyWithChunks) {
  EXPECT_THAT(Lists(ForwardOnly({0, 1, 0, 1}, 3)),
              ElementsAre("F0.0 F1.0 F0.2 F1.2 F2.0 F2.2", "F0.1 F1.1 F0.3 F1.3 F2.1 F2.3"));
  EXPECT_THAT(Lists(ForwardOnly({0, 1, 1, 0}, 3)),
              ElementsAre("F0.0 F1.0 F0.3 F2.0 F1.3 F2.3", "F0.1 F0.2 F1.1 F1.2 F2.1 F2.2"));
}

TEST(MakeSchedule, KnowsTheDecksNames) {
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::kGPipe), 4, 1, 8).jobs, GPipe(4, 8).jobs);
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::k1F1B), 4, 1, 8).jobs, OneFOneB(4, 8).jobs);
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::kInterleaved), 4, 3, 8).jobs, Interleaved(4, 3, 8).jobs);
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::kZeroBubbleH1), 4, 1, 8).jobs, ZeroBubbleH1(4, 8).jobs);
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::kZeroBubbleV), 4, 2, 8).jobs, ZeroBubbleV(4, 8).jobs);
  EXPECT_EQ(MakeSchedule(TraitsOf(ScheduleKind::kDualPipeV), 4, 2, 8).jobs, DualPipeV(4, 8).jobs);
}

// Schedule, chunks per stage.
const std::vector<std::pair<ScheduleKind, int>> kNamed = {{ScheduleKind::k1F1B, 1},
                                                          {ScheduleKind::kGPipe, 1},
                                                          {ScheduleKind::kInterleaved, 2},
                                                          {ScheduleKind::kInterleaved, 3},
                                                          {ScheduleKind::kInterleaved, 4},
                                                          {ScheduleKind::kZeroBubbleH1, 1},
                                                          {ScheduleKind::kZeroBubbleInterleaved, 2},
                                                          {ScheduleKind::kZeroBubbleInterleaved, 3},
                                                          {ScheduleKind::kZeroBubbleV, 2},
                                                          {ScheduleKind::kDualPipeV, 2}};

TEST(MakeSchedule, PlacesChunksAsTheScheduleDoes) {
  for (const auto& [kind, chunks] : kNamed)
    for (int p : {1, 2, 5})
      EXPECT_EQ(TraitsOf(kind).PlaceChunks(p, chunks), MakeSchedule(TraitsOf(kind), p, chunks, 2 * p).stage_of_chunk)
          << Name(kind);
}

TEST(MakeSchedule, SaysWhichNumbersWouldDo) {
  EXPECT_EQ(TraitsOf(ScheduleKind::k1F1B).ChunkCountError(1), "");
  EXPECT_EQ(TraitsOf(ScheduleKind::k1F1B).ChunkCountError(2), "must be 1 for pipeline.schedule = \"1f1b\"");
  EXPECT_EQ(TraitsOf(ScheduleKind::kZeroBubbleV).ChunkCountError(3), "must be 2 for pipeline.schedule = \"zbv\"");
  EXPECT_EQ(TraitsOf(ScheduleKind::kInterleaved).ChunkCountError(1),
            "must be at least 2 for pipeline.schedule = \"interleaved\"");
  EXPECT_EQ(TraitsOf(ScheduleKind::kInterleaved).ChunkCountError(7), "");
  for (const auto& [kind, chunks] : kNamed) EXPECT_EQ(TraitsOf(kind).ChunkCountError(TraitsOf(kind).min_chunks), "");
  EXPECT_EQ(TraitsOf(ScheduleKind::kZeroBubbleV).MinMicrobatches(4), 1);
  EXPECT_EQ(TraitsOf(ScheduleKind::kInterleaved).MinMicrobatches(4), 4);
  EXPECT_EQ(TraitsOf(ScheduleKind::kDualPipeV).MinMicrobatches(4), 8);
  EXPECT_THROW(TraitsOf(ScheduleKind::kForwardOnly), InvariantError);
  EXPECT_THROW(MakeSchedule(TraitsOf(ScheduleKind::k1F1B), 4, 2, 8), InvariantError);
  EXPECT_THROW(MakeSchedule(TraitsOf(ScheduleKind::kDualPipeV), 4, 2, 7), InvariantError);
}

// Every schedule with every allowed number of microbatches: each part once and in order, no deadlock.
TEST(MakeSchedule, IsSoundForAnyNumbers) {
  for (const auto& [kind, chunks] : kNamed)
    for (int p : {1, 2, 3, 4, 5, 8})
      for (int m = static_cast<int>(TraitsOf(kind).MinMicrobatches(p)); m <= 5 * p + 3; ++m)
        for (const RoleCosts& costs : {RoleCosts{1, 1, 1}, RoleCosts{1, 1.5, 0.5}, RoleCosts{3, 1, 2}})
          ASSERT_NO_THROW(Validate(MakeSchedule(TraitsOf(kind), p, chunks, m), costs))
              << Name(kind) << " p " << p << " m " << m;
}
TEST(MakeSchedule, IsSoundWithJointJobs) {
  for (const auto& [kind, chunks] : kNamed)
    for (int p : {1, 2, 3, 4, 5, 8})
      for (int m = static_cast<int>(TraitsOf(kind).MinMicrobatches(p)); m <= 5 * p + 3; ++m) {
        const Schedule joint = MakeSchedule(TraitsOf(kind), p, chunks, m, SteadyState::kJoint);
        ASSERT_NO_THROW(Validate(joint, RoleCosts{1, 1.5, 0.5})) << Name(kind) << " p " << p << " m " << m;
        if (!TraitsOf(kind).has_joint_jobs) {
          EXPECT_EQ(joint.jobs, MakeSchedule(TraitsOf(kind), p, chunks, m).jobs);
        }
      }
}

// Stages, microbatches, and asymmetric costs.
class ClosedForm : public ::testing::TestWithParam<std::tuple<int, int, RoleCosts>> {};

TEST_P(ClosedForm, IdleTimeAndPeakActivations) {
  const auto [p, m, costs] = GetParam();
  const double all = costs.f + costs.b + costs.w;
  for (const Schedule& schedule : {GPipe(p, m), OneFOneB(p, m)}) {
    const Replay replay = Validate(schedule, costs);
    EXPECT_DOUBLE_EQ(replay.makespan, (m + p - 1) * all) << Name(schedule.kind);
    for (int r = 0; r < p; ++r) {
      const auto stage = static_cast<size_t>(r);
      EXPECT_NEAR(replay.idle[stage], (p - 1) * all, 1e-9) << Name(schedule.kind) << " stage " << r;
      EXPECT_EQ(replay.peak_activations[stage], schedule.kind == ScheduleKind::kGPipe ? m : std::min(m, p - r))
          << Name(schedule.kind);
    }
  }
}

TEST_P(ClosedForm, JointJobsKeepTheIdleTimeAndTwiceTheActivations) {
  const auto [p, m, costs] = GetParam();
  const Replay replay = Validate(OneFOneB(p, m, SteadyState::kJoint), costs);
  EXPECT_DOUBLE_EQ(replay.makespan, (m + p - 1) * (costs.f + costs.b + costs.w));
  for (int r = 0; r < p; ++r) EXPECT_EQ(replay.peak_activations[static_cast<size_t>(r)], std::min(m, 2 * (p - r)));
}

std::vector<std::tuple<int, int, RoleCosts>> ClosedFormCases() {
  std::vector<std::tuple<int, int, RoleCosts>> cases;
  for (int p : {1, 2, 3, 4, 8}) {
    for (int m : {1, p, p + 1, 2 * p, 3 * p}) {
      cases.push_back({p, m, {1, 1, 1}});
      cases.push_back({p, m, {1, 1.25, 0.75}});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ClosedForm, ::testing::ValuesIn(ClosedFormCases()));

// With the optimizer's barrier, for W <= F <= B and enough microbatches to fill the pipeline; costs are per chunk.
class PublishedForm : public ::testing::TestWithParam<std::tuple<int, int, RoleCosts>> {
 protected:
  void Idles(const Schedule& schedule, double least, double most) const {
    const Replay replay = Validate(schedule, std::get<2>(GetParam()));
    for (double idle : replay.idle) {
      EXPECT_LE(idle, most + 1e-9) << Name(schedule.kind);
      EXPECT_GE(idle, least - 1e-9) << Name(schedule.kind);
    }
  }
  void Idles(const Schedule& schedule, double time) const { Idles(schedule, time, time); }
};

TEST_P(PublishedForm, IdleTime) {
  const auto [p, m, c] = GetParam();
  const double all = c.f + c.b + c.w;
  for (int v : {2, 3, 4}) Idles(Interleaved(p, v, m), (p - 1) * all);
  for (int v : {2, 3, 4}) Idles(Interleaved(p, v, m, SteadyState::kJoint), (p - 1) * all);
  Idles(ZeroBubbleH1(p, m), (p - 1) * (c.f + c.b - c.w));
  const double interleaved = (p - 1) * (c.f + c.b - c.w);
  for (int v : {2, 3, 4}) Idles(ZeroBubbleInterleaved(p, v, m), interleaved, 1.1 * interleaved);
  Idles(ZeroBubbleV(p, m), (p - 1) * std::max(c.b, 2 * (c.b - c.w)));
  Idles(DualPipeV(p, m), 0, (p - 1) * (all + (c.b + c.w) - 3 * c.w));
}

TEST_P(PublishedForm, PeakActivations) {
  const auto [p, m, costs] = GetParam();
  for (int r = 0; r < p; ++r) {
    const auto peak = [r](const Schedule& schedule) {
      return Validate(schedule).peak_activations[static_cast<size_t>(r)];
    };
    for (int v : {2, 3, 4}) {
      const int alternating = 2 * (p - 1 - r) + (v - 1) * p + 1;
      EXPECT_EQ(peak(Interleaved(p, v, m)), std::min(m * v, alternating)) << v;
      EXPECT_EQ(peak(Interleaved(p, v, m, SteadyState::kJoint)), std::min(m * v, alternating + 1)) << v;
      EXPECT_EQ(peak(ZeroBubbleInterleaved(p, v, m)), v * p) << v;
    }
    EXPECT_EQ(peak(ZeroBubbleH1(p, m)), p);
    EXPECT_EQ(peak(ZeroBubbleV(p, m)), 2 * p);
    EXPECT_EQ(peak(DualPipeV(p, m)), 2 * p + 1);
  }
}

std::vector<std::tuple<int, int, RoleCosts>> PublishedCases() {
  std::vector<std::tuple<int, int, RoleCosts>> cases;
  for (int p : {2, 4, 8})
    for (int m : {2 * p, 3 * p, 4 * p})
      for (const RoleCosts& costs : {RoleCosts{1, 1, 1}, RoleCosts{1, 1.25, 0.75}, RoleCosts{1, 1.5, 0.5}})
        cases.push_back({p, m, costs});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Schedules, PublishedForm, ::testing::ValuesIn(PublishedCases()));

TEST(Replay, ForwardOnlyStreams) {
  const Replay replay = Validate(ForwardOnly({0, 1, 2}, 5), {2, 0, 0});
  EXPECT_DOUBLE_EQ(replay.makespan, 2 * (5 + 3 - 1));
  EXPECT_THAT(replay.peak_activations, ElementsAre(1, 1, 1));
}

TEST(Replay, SpansSayWhenEachPartRuns) {
  const Replay replay = Validate(OneFOneB(2, 1), {1, 2, 0.5});
  ASSERT_EQ(replay.spans[0].size(), 3u);
  EXPECT_DOUBLE_EQ(replay.spans[1][0].begin, 1);
  EXPECT_DOUBLE_EQ(replay.spans[1][2].end, 4.5);
  EXPECT_EQ(replay.spans[0][1].part, (JobPart{0, Role::kB, 0}));
  EXPECT_DOUBLE_EQ(replay.spans[0][1].begin, 4.5);  // the gradient leaves when the joint job ends
  EXPECT_DOUBLE_EQ(replay.spans[0][2].end, 7);
}

TEST(Replay, BackwardMayBeSplit) {
  // The gradient leaves after B alone, so stage 0 starts its backward one unit earlier than with BW.
  const Replay split = Validate(ByHand(2, {0, 1}, {"F0 F1 B0 W0 B1 W1", "F0 B0 W0 F1 B1 W1"}));
  EXPECT_DOUBLE_EQ(split.spans[0][2].begin, 3);
  EXPECT_DOUBLE_EQ(split.makespan, 8);
  EXPECT_DOUBLE_EQ(Validate(OneFOneB(2, 2)).makespan, 9);
}

TEST(Replay, SeveralChunksPerStage) {
  // A V: chunks 1 and 2 are neighbours on one stage, so nothing is sent between them.
  const Replay replay = Validate(ByHand(
      2, {0, 1, 1, 0}, {"F0.0 F1.0 F0.3 BW0.3 F1.3 BW1.3 BW0.0 BW1.0", "F0.1 F0.2 F1.1 F1.2 BW0.2 BW0.1 BW1.2 BW1.1"}));
  EXPECT_THAT(replay.peak_activations, ElementsAre(3, 4));
  EXPECT_DOUBLE_EQ(replay.makespan, 16);
}

TEST(Draw, TheTimeline) {
  EXPECT_EQ(Draw(OneFOneB(3, 4)),
            "stage 0 | F0 F1 F2 ........... BW0== F3 BW1== .. BW2== .. BW3==\n"
            "stage 1 | .. F0 F1 ..... BW0== F2 BW1== F3 BW2== .. BW3== .....\n"
            "stage 2 | ..... F0 BW0== F1 BW1== F2 BW2== F3 BW3== ...........\n");
  EXPECT_EQ(Draw(GPipe(2, 2), {1, 1.5, 0.5}),
            "stage 0 | F0 F1 ........ BW0== BW1==\n"
            "stage 1 | .. F0 F1 BW0== BW1== .....\n");
}

// The picture above each schedule equals the drawer's output. Long rows continue in an indented line.
TEST(Draw, WhatTheSourcesShow) {
  const auto shows = [](const std::string& file, const Schedule& schedule) {
    std::ifstream source(InTree("src/schedule/") + file);
    std::string picture;
    for (std::string line; std::getline(source, line);)
      if (line.starts_with("//   stage "))
        picture += line.substr(5) + '\n';
      else if (line.starts_with("//             "))
        picture.replace(picture.size() - 1, 1, line.substr(14) + '\n');
    EXPECT_EQ(picture, Draw(schedule)) << file;
  };
  shows("gpipe.cpp", GPipe(4, 4));
  shows("one_f_one_b.cpp", OneFOneB(4, 8));
  shows("interleaved.cpp", Interleaved(2, 2, 4));
  shows("zb_h1.cpp", ZeroBubbleH1(4, 8));
  shows("zb_interleaved.cpp", ZeroBubbleInterleaved(2, 2, 4));
  shows("zbv.cpp", ZeroBubbleV(2, 4));
  shows("dualpipev.cpp", DualPipeV(2, 4));
  shows("forward_only.cpp", ForwardOnly({0, 1, 2, 3}, 8));
}

TEST(Draw, WhatTakesNoTimeIsNotDrawn) {
  EXPECT_EQ(Draw(ByHand(2, {0}, {"F0 B0 W0 F1 B1 W1"}), {1, 1, 0}), "stage 0 | F0 B0 F1 B1\n");
}

// The beginning, and the middle, where a row may begin inside a job.
TEST(Draw, B2LongTimelinesShowTheSteadyState) {
  EXPECT_EQ(Draw(OneFOneB(2, 12), {}, 50),
            "stage 0 | F0= F1= ....... ... = F6= BW5==== = ...\n"
            "stage 1 | ... F0= BW0==== ... ===== F6= BW6== ...\n");
}

TEST(Refuses, AJobTwice) {
  EXPECT_THAT(Refusal(ByHand(2, {0}, {"F0 F1 BW0 F1 BW1"})),
              AllOf(HasSubstr("stage 0, job 3 (F1)"), HasSubstr("twice")));
}

TEST(Refuses, AMissingJob) {
  EXPECT_THAT(Refusal(ByHand(2, {0, 1}, {"F0 F1 BW0 BW1", "F0 BW0 F1 B1"})),
              HasSubstr("stage 1: W of chunk 1, microbatch 1 is missing"));
  EXPECT_THAT(Refusal(ByHand(1, {0, 1}, {"F0", "F0"})), HasSubstr("B of chunk 0, microbatch 0 is missing"));
}

TEST(Refuses, AJobOnTheWrongStage) {
  EXPECT_THAT(Refusal(ByHand(1, {0, 1}, {"F0 F0.1 BW0", "BW0"})),
              AllOf(HasSubstr("stage 0, job 1 (F0)"), HasSubstr("chunk 1 is on stage 1")));
}

TEST(Refuses, MicrobatchesOutOfOrder) {
  EXPECT_THAT(Refusal(ByHand(3, {0}, {"F0 F2 F1 BW0 BW1 BW2"})),
              AllOf(HasSubstr("stage 0, job 1 (F2)"), HasSubstr("out of microbatch order, 1 is due")));
  EXPECT_THAT(Refusal(ByHand(2, {0}, {"F0 F1 BW1 BW0"})),
              HasSubstr("B of chunk 0 is out of microbatch order, 0 is due"));
  EXPECT_THAT(Refusal(ByHand(2, {0}, {"F0 F1 B0 B1 W1 W0"})), HasSubstr("W of chunk 0 is out of microbatch order"));
}

TEST(Refuses, WhatDoesNotExist) {
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 BW0 F1"})), HasSubstr("there is no microbatch 1"));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 BW0 F0.1"})), HasSubstr("there is no chunk 1"));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 BW0 S0"})), HasSubstr("role S has no place here"));
  EXPECT_THAT(Refusal(ByHand(1, {2}, {"F0 BW0"})), HasSubstr("chunk 0 is on stage 2"));
  Schedule schedule = OneFOneB(2, 2);
  schedule.jobs[1].push_back({});
  EXPECT_THAT(Refusal(schedule), HasSubstr("stage 1, job 4 (): it has no parts"));
  schedule.jobs.pop_back();
  EXPECT_THAT(Refusal(schedule), HasSubstr("1 job lists"));
  schedule = ForwardOnly({0}, 1);
  schedule.jobs[0].push_back(ParseJob("BW0", 0));
  EXPECT_THAT(Refusal(schedule), HasSubstr("role B has no place here"));
}

TEST(Refuses, ADeadlockWithinAStage) {
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"BW0 F0"})),
              AllOf(HasSubstr("deadlock by dependency"),
                    HasSubstr("stage 0 waits in job 0 (BW0) for F0 of its own stage, which comes later")));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 W0 B0"})), HasSubstr("waits in job 1 (W0) for B0 of its own stage"));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 WB0"})), HasSubstr("waits in job 1 (WB0) for B0 of its own stage"));
}

TEST(Refuses, ADeadlockBetweenStages) {
  // Stage 1 needs F1 before it sends the gradient that stage 0 needs before F1.
  EXPECT_THAT(Refusal(ByHand(2, {0, 1}, {"F0 BW0 F1 BW1", "F0 F1 BW0 BW1"})),
              AllOf(HasSubstr("deadlock by dependency"), HasSubstr("stage 0 waits in job 1 (BW0) for B0 from stage 1"),
                    HasSubstr("stage 1 waits in job 1 (F1) for F1 from stage 0")));
}

TEST(Refuses, ADeadlockOnlyByRendezvousOrder) {
  // Stage 0 sends F0, F1, F0.2; if stage 1 takes F0, F0.2, F1, as its jobs need them, F1 blocks the lane.
  const Schedule schedule = ByHand(
      2, {0, 1, 0, 1}, {"F0.0 F1.0 F0.2 F1.2 BW0.2 BW0.0 BW1.2 BW1.0", "F0.1 F0.3 F1.1 F1.3 BW0.3 BW0.1 BW1.3 BW1.1"});
  Receives receives = OrderReceives(schedule, NeighbourLinks(schedule));
  ASSERT_NO_THROW(Validate(schedule, {}, receives));
  ASSERT_EQ(receives[1][1].content, (JobPart{0, Role::kF, 1}));
  std::swap(receives[1][1], receives[1][2]);
  try {
    Validate(schedule, {}, receives);
    FAIL() << "accepted";
  } catch (const InvariantError& error) {
    EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("deadlock because sends wait for their receives"),
                                                 HasSubstr("sends F1.0 to stage 1, which receives F0.2 first"),
                                                 HasSubstr("stage 1 waits in job 1 (F0.3) for F0.2 from stage 0")));
  }
}

TEST(OrderReceives, OneJobAheadOrEarlier) {
  // Stage 1 has F1 and F2 waiting while it runs the backward of F0.
  const Schedule schedule = OneFOneB(2, 3);
  const Receives receives = OrderReceives(schedule, NeighbourLinks(schedule));
  std::vector<size_t> before_job;
  for (const Receive& receive : receives[1]) before_job.push_back(receive.before_job);
  EXPECT_EQ(ToString(schedule, 1), "F0 BW0 F1 BW1 F2 BW2");
  EXPECT_THAT(before_job, ElementsAre(0, 1, 3));
}

TEST(OrderReceives, InOrderStandBetweenTheStagesOwnSends) {
  // Stage 0 receives a gradient after the forward job that ends before it is made, not during it. F1 is made when stage
  // 1 ends F0: of two stages at one time the first comes first.
  const Schedule schedule = OneFOneB(2, 3);
  const Receives receives = OrderReceives(schedule, NeighbourLinks(schedule), Posting::kInOrder);
  std::vector<std::vector<size_t>> before_job(2);
  for (size_t stage : {0u, 1u})
    for (const Receive& receive : receives[stage]) before_job[stage].push_back(receive.before_job);
  EXPECT_EQ(ToString(schedule, 0), "F0 F1 BW0 F2 BW1 BW2");
  EXPECT_THAT(before_job[0], ElementsAre(2, 4, 5));
  EXPECT_THAT(before_job[1], ElementsAre(0, 0, 3));
}

TEST(OrderReceives, InOrderIsNeverTooLate) {
  for (const auto& [kind, chunks] : kNamed)
    for (int m : {8, 13}) {
      const Schedule schedule = MakeSchedule(TraitsOf(kind), 4, chunks, m);
      ASSERT_NO_THROW(Validate(schedule, {}, OrderReceives(schedule, NeighbourLinks(schedule), Posting::kInOrder)))
          << Name(kind);
    }
}

TEST(OrderReceives, ASendersMessagesComeInItsOrder) {
  for (const auto& [kind, chunks] : kNamed) {
    const Schedule schedule = MakeSchedule(TraitsOf(kind), 4, chunks, 9);
    for (const std::vector<Receive>& list : OrderReceives(schedule, NeighbourLinks(schedule))) {
      std::map<int, size_t> last;  // by sender: the job that made its previous message
      for (const Receive& receive : list) {
        const int from = schedule.stage_of_chunk[static_cast<size_t>(receive.content.chunk)];
        const auto& jobs = schedule.jobs[static_cast<size_t>(from)];
        const auto made = static_cast<size_t>(std::find_if(jobs.begin(), jobs.end(),
                                                           [&](const Job& job) {
                                                             return std::find(job.parts.begin(), job.parts.end(),
                                                                              receive.content) != job.parts.end();
                                                           }) -
                                              jobs.begin());
        EXPECT_GE(made, last[from]) << Name(kind);
        last[from] = made;
      }
    }
  }
}

}  // namespace
}  // namespace espalier
