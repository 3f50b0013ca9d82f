// How the guard judges losses and norms: spikes relative to the last steps, and numbers that are not finite.
#include "train/guard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "test_decks.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using Verdict = Guard::Verdict;

Deck Watching(OnSpike on_spike) {
  Deck deck{};
  deck.guard = {OnNonfinite::kStop, 2, 1, on_spike, 3, 4};
  return deck;
}
const std::vector<StepSeen> kWindow = {{2, 1}, {4, 1}, {6, 3}, {8, 3}};  // deviations sqrt(20 / 3) and sqrt(4 / 3)

TEST(Guard, LimitsAreDeviationsAboveTheMean) {
  const SpikeLimits limits = LimitsOf(Watching(OnSpike::kSkip).guard, kWindow);
  EXPECT_FLOAT_EQ(limits.loss, static_cast<float>(5 + 3 * std::sqrt(20.0 / 3)));
  EXPECT_FLOAT_EQ(limits.norm, static_cast<float>(2 + 3 * std::sqrt(4.0 / 3)));
  EXPECT_EQ(LimitsOf(Watching(OnSpike::kSkip).guard, {{2, 1}, {4, 1}, {6, 3}}).loss, INFINITY) << "not full yet";
}

TEST(Guard, AcceptedStepsAloneMoveTheWindow) {
  const Deck deck = Watching(OnSpike::kSkip);
  Guard guard(deck, kWindow);
  const float limit = guard.LimitsOfUpdate().loss;
  EXPECT_EQ(guard.Judge(limit, 2), Verdict::kAccept) << "the limit itself is no spike";
  EXPECT_EQ(guard.window().front(), (StepSeen{4, 1}));
  EXPECT_EQ(guard.window().back(), (StepSeen{limit, 2}));
  const std::vector<StepSeen> before = guard.window();
  EXPECT_EQ(guard.Judge(1000, 2), Verdict::kSkip);
  EXPECT_THAT(guard.Spike(), testing::AllOf(testing::StartsWith("loss 1000 is a spike: above "),
                                            HasSubstr("mean and deviation of the last 4 steps (guard.spike_z = 3)")));
  EXPECT_EQ(guard.window(), before);
  EXPECT_EQ(guard.Judge(5, 1000), Verdict::kSkip) << "twice in a row is allowed";
  EXPECT_THAT(guard.Spike(), testing::StartsWith("gradient norm 1000 is a spike: "));
  EXPECT_EQ(guard.Judge(1000, 1000), Verdict::kStop);
  EXPECT_THAT(guard.Limit(), HasSubstr("guard.max_skips = 2"));
}

TEST(Guard, AWarningAcceptsTheStepAndLimitsNothing) {
  const Deck deck = Watching(OnSpike::kWarn);
  Guard guard(deck, kWindow);
  EXPECT_EQ(guard.LimitsOfUpdate().loss, INFINITY);
  EXPECT_EQ(guard.Judge(1000, 2), Verdict::kWarn);
  EXPECT_EQ(guard.window().back(), (StepSeen{1000, 2}));
}

TEST(Guard, ARollbackTakesTheWindowOfTheCheckpoint) {
  const Deck deck = Watching(OnSpike::kRollback);
  Guard guard(deck, kWindow);
  EXPECT_EQ(guard.Judge(5, 2), Verdict::kAccept);
  EXPECT_EQ(guard.Judge(500, 2), Verdict::kRollBack);
  guard.GoBackTo({{1, 1}, {2, 1}, {4, 1}, {6, 3}, {8, 3}});
  EXPECT_EQ(guard.window(), kWindow) << "no more than spike_window steps";
  EXPECT_EQ(guard.Judge(500, 2), Verdict::kStop);
  EXPECT_THAT(guard.Limit(), HasSubstr("guard.max_rollbacks = 1"));
}

TEST(Guard, RollbacksAfterCorruptionCountWithTheOthers) {
  Deck deck = Watching(OnSpike::kRollback);
  deck.guard.on_corruption = OnCorruption::kRollback;
  Guard guard(deck, kWindow);
  EXPECT_EQ(guard.JudgeCorruption(), Verdict::kRollBack);
  EXPECT_EQ(guard.Judge(500, 2), Verdict::kStop) << "one rollback is allowed";
  deck.guard.on_corruption = OnCorruption::kStop;
  EXPECT_EQ(Guard(deck, kWindow).JudgeCorruption(), Verdict::kStop);
}

TEST(Guard, WithoutSpikesOnlyNumbersThatAreNotFiniteCount) {
  Deck deck = Watching(OnSpike::kStop);
  deck.guard.spike_z = 0;
  Guard guard(deck, kWindow);
  EXPECT_TRUE(guard.window().empty());
  EXPECT_EQ(guard.Judge(1e30f, 1e30f), Verdict::kAccept);
  EXPECT_EQ(guard.Judge(NAN, 1), Verdict::kStop);
  EXPECT_EQ(guard.Spike(), "");
}

}  // namespace
}  // namespace espalier
