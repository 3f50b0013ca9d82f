// The batch-size ramp: sizes, sequences without gaps, and relations of its keys.
#include "espalier/deck/batch_ramp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deck_testing.hpp"
#include "espalier/deck/parse.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

BatchRamp RampOf(int64_t global, int64_t start, int64_t step, int64_t steps) {
  return BatchRamp(Deck::Batch{global, 1, start, step, steps});
}

std::vector<int64_t> Sequences(const BatchRamp& ramp, int64_t steps) {
  std::vector<int64_t> sequences;
  for (int64_t step = 1; step <= steps; ++step) sequences.push_back(ramp.SequencesOf(step));
  return sequences;
}

TEST(BatchRamp, GrowsUntilGlobalAndStaysThere) {
  EXPECT_THAT(Sequences(RampOf(11, 2, 3, 2), 9), ElementsAre(2, 2, 5, 5, 8, 8, 11, 11, 11));
  EXPECT_THAT(Sequences(RampOf(7, 1, 6, 3), 5), ElementsAre(1, 1, 1, 7, 7));
  EXPECT_THAT(Sequences(RampOf(3, 1, 1, 1), 4), ElementsAre(1, 2, 3, 3));
  EXPECT_EQ(RampOf(11, 2, 3, 2).FirstFullStep(), 7);
}

TEST(BatchRamp, WithoutOneAllStepsAreEqual) {
  for (const BatchRamp& ramp : {BatchRamp(5), RampOf(5, 0, 1, 100), RampOf(5, 5, 5, 2)}) {
    EXPECT_FALSE(ramp.Grows());
    EXPECT_THAT(Sequences(ramp, 4), ElementsAre(5, 5, 5, 5));
    EXPECT_EQ(ramp.FirstFullStep(), 1);
    EXPECT_EQ(ramp.SequencesUpTo(0), 0);
    EXPECT_EQ(ramp.SequencesUpTo(7), 35);
    EXPECT_EQ(ramp.Sizes().size(), 1u);
  }
}

// The closed form equals the sum: step t begins with the sequence after the last one of step t - 1.
TEST(BatchRamp, SequencesFollowOneAnotherWithoutGaps) {
  for (const BatchRamp& ramp : {RampOf(11, 2, 3, 2), RampOf(7, 1, 6, 3), RampOf(100, 1, 3, 7), RampOf(9, 9, 9, 4),
                                RampOf(23, 1, 1, 1), RampOf(30, 6, 8, 5)}) {
    int64_t sum = 0;
    for (int64_t step = 1; step <= 300; ++step) {
      ASSERT_EQ(ramp.SequencesUpTo(step - 1), sum) << Describe(ramp) << ", step " << step;
      sum += ramp.SequencesOf(step);
    }
  }
}

TEST(BatchRamp, LargeNumbersDoNotWrap) {
  const int64_t steps = 2'000'000'000, global = 1 << 20;
  const BatchRamp ramp = RampOf(global, 1 << 12, 1 << 12, 1'000'000);
  const int64_t rising = 255 * int64_t{1'000'000};
  EXPECT_EQ(ramp.SequencesUpTo(steps), rising / 2 * global + (steps - rising) * global);
  EXPECT_EQ(ramp.FirstFullStep(), rising + 1);
}

TEST(BatchRamp, SizesAreThoseOfTheSteps) {
  const BatchRamp ramp = RampOf(11, 2, 3, 2);
  const std::vector<RampSize> sizes = ramp.Sizes();
  ASSERT_EQ(sizes.size(), 4u);
  for (int64_t step = 1; step <= 12; ++step)
    EXPECT_EQ(sizes[static_cast<size_t>(ramp.IndexOf(step))].sequences, ramp.SequencesOf(step)) << step;
  for (const RampSize& size : sizes) {
    EXPECT_EQ(ramp.SequencesOf(size.first_step), size.sequences);
    if (size.first_step > 1) {
      EXPECT_LT(ramp.SequencesOf(size.first_step - 1), size.sequences);
    }
  }
  EXPECT_EQ(ramp.SizesWithin(4).size(), 2u);
  EXPECT_EQ(ramp.SizesWithin(5).size(), 3u);
  EXPECT_EQ(ramp.SizesWithin(500).size(), 4u);
}

TEST(BatchRamp, IsDescribedInWords) {
  EXPECT_EQ(Describe(RampOf(16, 4, 4, 100)), "4 sequences a step, 4 more every 100 steps, 16 from step 301 on");
  EXPECT_EQ(Describe(RampOf(7, 1, 6, 2)), "1 sequence a step, 6 more every 2 steps, 7 from step 3 on");
  EXPECT_EQ(Describe(BatchRamp(6)), "6 sequences a step");
}

// Small has batch.micro = 3 and an open number of ranks.
TEST(BatchRampKeys, AllFaultsAreReportedAtOnce) {
  const std::string at = "command line: ";
  EXPECT_THAT(Errors({"batch.global=24", "batch.ramp_start=6", "batch.ramp_step=6"}), IsEmpty());
  EXPECT_THAT(Errors({"batch.global=24", "batch.ramp_start=6"}), IsEmpty());
  EXPECT_THAT(Errors({"batch.global=24", "batch.ramp_start=24", "batch.ramp_step=5"}), IsEmpty());
  EXPECT_THAT(Errors({"batch.global=12", "batch.ramp_start=15"}),
              ElementsAre(at + "batch.ramp_start = 15: must be at most batch.global = 12 (allowed: 0 for no ramp, or 1 "
                               "to 12)"));
  EXPECT_THAT(Errors({"parallel.dp_shard=2", "batch.global=24", "batch.ramp_start=4", "batch.ramp_step=7"}),
              UnorderedElementsAre(
                  at + "batch.ramp_start = 4: must be a multiple of batch.micro * dp_replicate * dp_shard = 3 * 1 * 2 "
                       "= 6 (allowed: 6, 12, 18, ...)",
                  at + "batch.ramp_step = 7: must be a multiple of batch.micro * dp_replicate * dp_shard = 3 * 1 * 2 = "
                       "6 (allowed: 6, 12, 18, ...)",
                  at + "batch.ramp_step = 7: must divide batch.global - batch.ramp_start = 24 - 4 = 20 (allowed: 1, "
                       "2, 4, 5, 10, 20)"));
  EXPECT_THAT(Errors({"parallel.dp_shard=2", "batch.global=30", "batch.ramp_start=6", "batch.ramp_step=18"}),
              ElementsAre(HasSubstr("must divide batch.global - batch.ramp_start = 30 - 6 = 24 (allowed: 6, 12, 24)")));
  EXPECT_THAT(Errors({"batch.ramp_start=-1", "batch.ramp_step=0", "batch.ramp_steps=0"}), testing::SizeIs(3));
}

TEST(BatchRampKeys, TheSmallestStepSuitsTheSchedule) {
  const Strings keys = {"parallel.pp=2", "pipeline.schedule=dualpipev", "parallel.dp_shard=1", "batch.global=24"};
  const auto with = [&](const std::string& start) {
    Strings all = keys;
    all.push_back(start);
    return Errors(all);
  };
  EXPECT_THAT(with("batch.ramp_start=12"), IsEmpty());
  EXPECT_THAT(with("batch.ramp_start=6"),
              ElementsAre(HasSubstr("batch.ramp_start = 6: makes 2 microbatches of 3 sequences, but pipeline.schedule "
                                    "= \"dualpipev\" with parallel.pp = 2 needs at least 4")));
}

TEST(BatchRampKeys, SizesAreCheckedAgainstTheRanks) {
  const Deck deck = Small({"batch.global=24", "batch.ramp_start=6"});
  EXPECT_NO_THROW(ResolveMesh(deck, 2));
  EXPECT_THAT(ErrorsOf([&] { ResolveMesh(deck, 4); }),
              ElementsAre(HasSubstr("batch.ramp_start = 6: must be a multiple")));
}

TEST(BatchRampKeys, ThereAreNotTooManyPrograms) {
  EXPECT_THAT(Errors({"batch.micro=1", "batch.global=1024", "batch.ramp_start=1"}),
              ElementsAre(HasSubstr("batch.ramp_step = 1: makes steps of 1024 sizes")));
  EXPECT_THAT(Errors({"batch.micro=1", "parallel.dp_shard=1", "batch.global=25600", "batch.ramp_start=100"}),
              ElementsAre(HasSubstr("together; the limits are 256 sizes and 1048576 passes")));
}

TEST(BatchRampKeys, WhatHasNoEffectIsSaid) {
  const auto said = [](Strings overrides) {
    overrides.insert(overrides.end(), {"batch.global=24", "run.steps=50"});
    return Idle(overrides);
  };
  EXPECT_THAT(said({"batch.ramp_step=6"}), testing::Contains(HasSubstr("batch.ramp_start = 0 has no ramp")));
  EXPECT_THAT(said({"batch.ramp_start=24"}), testing::Contains(HasSubstr("all steps have batch.global")));
  EXPECT_THAT(said({"batch.ramp_start=6", "batch.ramp_steps=20"}),
              testing::Contains(HasSubstr("batch.ramp_start = 6 grows slowly: the run ends with step 50, and "
                                          "batch.global = 24 would begin with step 61")));
  EXPECT_THAT(said({"batch.ramp_start=6", "batch.ramp_steps=16"}),
              testing::Not(testing::Contains(HasSubstr("batch.ramp"))));
}

}  // namespace
}  // namespace espalier
