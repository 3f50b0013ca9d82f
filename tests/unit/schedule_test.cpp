// Schedules: exact job lists, the replay's times against closed forms, pictures, and lists that must be refused.
#include "espalier/schedule/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "espalier/util/error.hpp"

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
  Schedule schedule{"by hand", static_cast<int>(lists.size()), microbatches, std::move(stage_of_chunk), {}};
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
  EXPECT_THAT(Lists(ForwardOnly(2, 3)), ElementsAre("F0 F1 F2", "F0 F1 F2"));
}

TEST(JobLists, ChunksAndWovenPartsAreNamed) {
  const Schedule schedule = ByHand(2, {0, 1, 1, 0}, {"F0.0 F1.0&BW0.3", "F0.1 F0.2 B0.2 W0.2"});
  EXPECT_THAT(Lists(schedule), ElementsAre("F0.0 F1.0&BW0.3", "F0.1 F0.2 B0.2 W0.2"));
}

TEST(MakeSchedule, KnowsTheDecksNames) {
  EXPECT_EQ(MakeSchedule("gpipe", 4, 1, 8).jobs, GPipe(4, 8).jobs);
  EXPECT_EQ(MakeSchedule("1f1b", 4, 1, 8).jobs, OneFOneB(4, 8).jobs);
}

TEST(MakeSchedule, RefusesWhatItCannotDo) {
  const auto message = [](std::string_view name, int chunks) -> std::string {
    try {
      MakeSchedule(name, 4, chunks, 8);
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kDeck);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message("zigzag", 1), AllOf(HasSubstr("zigzag"), HasSubstr("\"1f1b\", \"gpipe\"")));
  EXPECT_THAT(message("1f1b", 2), AllOf(HasSubstr("pipeline.chunks = 2"), HasSubstr("set pipeline.chunks = 1")));
}

// Stages, microbatches, and costs that no symmetry hides.
class ClosedForm : public ::testing::TestWithParam<std::tuple<int, int, RoleCosts>> {};

TEST_P(ClosedForm, IdleTimeAndPeakActivations) {
  const auto [p, m, costs] = GetParam();
  const double all = costs.f + costs.b + costs.w;
  for (const Schedule& schedule : {GPipe(p, m), OneFOneB(p, m)}) {
    const Replay replay = Validate(schedule, costs);
    EXPECT_DOUBLE_EQ(replay.makespan, (m + p - 1) * all) << schedule.name;
    for (int r = 0; r < p; ++r) {
      const auto stage = static_cast<size_t>(r);
      EXPECT_NEAR(replay.idle[stage], (p - 1) * all, 1e-9) << schedule.name << " stage " << r;
      EXPECT_EQ(replay.peak_activations[stage], schedule.name == "gpipe" ? m : std::min(m, p - r)) << schedule.name;
    }
  }
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

TEST(Replay, ForwardOnlyStreams) {
  const Replay replay = Validate(ForwardOnly(3, 5), {2, 0, 0});
  EXPECT_DOUBLE_EQ(replay.makespan, 2 * (5 + 3 - 1));
  EXPECT_THAT(replay.peak_activations, ElementsAre(1, 1, 1));
}

TEST(Replay, SpansSayWhenEachPartRuns) {
  const Replay replay = Validate(OneFOneB(2, 1), {1, 2, 0.5});
  ASSERT_EQ(replay.spans[0].size(), 3u);
  EXPECT_DOUBLE_EQ(replay.spans[1][0].begin, 1);
  EXPECT_DOUBLE_EQ(replay.spans[1][2].end, 4.5);
  EXPECT_EQ(replay.spans[0][1].part, (JobPart{0, Role::kB, 0}));
  EXPECT_DOUBLE_EQ(replay.spans[0][1].begin, 4.5);  // the gradient leaves when the woven job ends
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
  // A V: chunks 1 and 2 are neighbours on one stage, nothing is sent between them.
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

TEST(Draw, WhatTakesNoTimeIsNotDrawn) {
  EXPECT_EQ(Draw(ByHand(2, {0}, {"F0 B0 W0 F1 B1 W1"}), {1, 1, 0}), "stage 0 | F0 B0 F1 B1\n");
}

TEST(Draw, LongTimelinesAreCut) {
  EXPECT_EQ(Draw(OneFOneB(2, 12), {}, 50),
            "stage 0 | F0= F1= ....... BW0==== F2= BW1====  ...\n"
            "stage 1 | ... F0= BW0==== F1= BW1==== F2= BW2= ...\n");
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
  EXPECT_THAT(Refusal(schedule), HasSubstr("stage 1, job 4 has no parts"));
  schedule.jobs.pop_back();
  EXPECT_THAT(Refusal(schedule), HasSubstr("1 job lists"));
  schedule = ForwardOnly(1, 1);
  schedule.jobs[0].push_back(ParseJob("BW0", 0));
  EXPECT_THAT(Refusal(schedule), HasSubstr("role B has no place here"));
}

TEST(Refuses, ADeadlockWithinAStage) {
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"BW0 F0"})),
              AllOf(HasSubstr("deadlock by dependency"),
                    HasSubstr("stage 0 waits in job 0 (BW0) for F0 of its own stage, which stands later")));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 W0 B0"})), HasSubstr("waits in job 1 (W0) for B0 of its own stage"));
  EXPECT_THAT(Refusal(ByHand(1, {0}, {"F0 WB0"})), HasSubstr("waits in job 1 (WB0) for B0 of its own stage"));
}

TEST(Refuses, ADeadlockBetweenStages) {
  // Stage 1 wants F1 before it gives the gradient that stage 0 wants before F1.
  EXPECT_THAT(Refusal(ByHand(2, {0, 1}, {"F0 BW0 F1 BW1", "F0 F1 BW0 BW1"})),
              AllOf(HasSubstr("deadlock by dependency"), HasSubstr("stage 0 waits in job 1 (BW0) for B0 from stage 1"),
                    HasSubstr("stage 1 waits in job 1 (F1) for F1 from stage 0")));
}

TEST(Refuses, ADeadlockOnlyByRendezvousOrder) {
  // Stage 0 sends F0, F1, F0.2 and stage 1 takes F0, F0.2, F1: fine with buffers; F1 blocks the lane without.
  const std::string late = "F0.0 F1.0 F0.2 F1.2 BW0.2 BW0.0 BW1.2 BW1.0";
  const std::string rest = "BW0.3 BW0.1 BW1.3 BW1.1";
  EXPECT_THAT(Refusal(ByHand(2, {0, 1, 0, 1}, {late, "F0.1 F0.3 F1.1 F1.3 " + rest})),
              AllOf(HasSubstr("deadlock because sends wait for their receives"),
                    HasSubstr("sends F1.0 to stage 1, which receives F0.2 first"),
                    HasSubstr("stage 1 waits in job 1 (F0.3) for F0.2 from stage 0")));
  EXPECT_EQ(Refusal(ByHand(2, {0, 1, 0, 1}, {late, "F0.1 F1.1 F0.3 F1.3 " + rest})), "accepted");
}

}  // namespace
}  // namespace espalier
