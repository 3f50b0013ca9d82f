// run.epochs: the number of steps in passes over data, and that exactly one of both keys is set.
#include "espalier/deck/epochs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deck_testing.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/compare.hpp"

namespace espalier {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

LoadedDeck Loaded(const Strings& overrides) { return ParseDeck(kSmall, "small", overrides); }

int64_t StepsOf(const Strings& overrides, int64_t samples) {
  return WithStepsOfEpochs(Loaded(overrides), samples).deck.run.steps;
}

std::string WithoutSteps() {
  std::string text = kSmall;
  return text.erase(text.find("steps = 20\n"), 11);
}

TEST(Epochs, WholeStepsThatFit) {
  EXPECT_EQ(StepsOf({"run.epochs=1"}, 120), 10);
  EXPECT_EQ(StepsOf({"run.epochs=1"}, 131), 10);  // the rest is less than a step
  EXPECT_EQ(StepsOf({"run.epochs=2"}, 131), 21);  // and continues in the next pass
  EXPECT_EQ(StepsOf({"run.epochs=0.5"}, 120), 5);
  EXPECT_EQ(StepsOf({"run.epochs=0.29", "batch.global=1", "batch.micro=1"}, 100), 29);
}

TEST(Epochs, OfABatchRamp) {
  const Strings ramp = {"run.epochs=1", "batch.ramp_start=3", "batch.ramp_step=3", "batch.ramp_steps=2"};
  // 3 3 6 6 9 9 12 12 ...
  EXPECT_EQ(StepsOf(ramp, 35), 5);
  EXPECT_EQ(StepsOf(ramp, 36), 6);
  EXPECT_EQ(StepsOf(ramp, 48), 7);
}

// The inverse of the number of sequences.
TEST(Epochs, StepsWithinIsTheInverseOfSequencesUpTo) {
  for (const BatchRamp& ramp :
       {BatchRamp(7), BatchRamp(Deck::Batch{11, 1, 2, 3, 2}), BatchRamp(Deck::Batch{23, 1, 1, 1, 1})})
    for (int64_t sequences = 0; sequences < 500; ++sequences) {
      const int64_t steps = ramp.StepsWithin(sequences);
      ASSERT_LE(ramp.SequencesUpTo(steps), sequences);
      ASSERT_GT(ramp.SequencesUpTo(steps + 1), sequences);
    }
}

TEST(Epochs, DefaultsFollowTheSteps) {
  const LoadedDeck loaded = Loaded({"run.epochs=2", "lr.warmup_steps=5"});
  EXPECT_TRUE(AwaitsData(loaded.deck));
  EXPECT_EQ(loaded.deck.run.steps, 0);
  const LoadedDeck counted = WithStepsOfEpochs(loaded, 240);
  EXPECT_FALSE(AwaitsData(counted.deck));
  EXPECT_EQ(counted.deck.lr.decay_steps, 35);
  EXPECT_EQ(counted.origins.at("run.steps"), "from run.epochs = 2 of 240 samples");
  EXPECT_EQ(WithStepsOfEpochs(Loaded({"run.epochs=2", "lr.decay_steps=9"}), 240).deck.lr.decay_steps, 9);
  EXPECT_EQ(StepsOf({"run.steps=7"}, 240), 7);
}

TEST(Epochs, TooFewSamples) {
  EXPECT_THAT(ErrorsOf([] { StepsOf({"run.epochs=0.01"}, 1000); }),
              ElementsAre("command line: run.epochs = 0.01: 10 of 1000 samples, and the first step alone has 12 "
                          "(run.epochs of 0.012 is enough; or lower batch.global)"));
  EXPECT_THAT(ErrorsOf([] {
                StepsOf({"run.epochs=1000000", "batch.global=3"}, 10'000'000'000);
              }),
              ElementsAre(HasSubstr("makes 2147483648 steps: out of range")));
}

TEST(Epochs, OneOfBothIsSet) {
  EXPECT_THAT(
      ErrorsOfText(WithoutSteps()),
      ElementsAre("small: run.steps: missing: every deck must set it to an integer, or set run.epochs (allowed: "
                  "1 to 2147483647)"));
  EXPECT_THAT(ErrorsOfText(std::string("[run]\nepochs = 2\n") + (kSmall + 7)),
              ElementsAre("small:2: run.epochs = 2.0: run.steps = 20 is set too: leave one of them out"));
  EXPECT_THAT(Errors({"run.epochs=2", "run.steps=3"}), ElementsAre(HasSubstr("run.steps = 3 is set too")));
  EXPECT_THAT(Errors({"run.epochs=-1"}), ElementsAre(HasSubstr("run.epochs=-1: out of range")));
  EXPECT_THAT(Errors({"run.epochs=2", "run.device=sleep", "run.cluster=a.toml"}),
              ElementsAre(HasSubstr("opens no data (set run.steps)")));
}

// A later setting replaces the other key, as it replaces the same key.
TEST(Epochs, TheCommandLineReplacesTheOtherKey) {
  EXPECT_EQ(Loaded({"run.epochs=2"}).deck.run.steps, 0);
  const std::string epochs = WithoutSteps().insert(7, "epochs = 3\n");
  const Deck deck = ParseDeck(epochs, "small", {"run.steps=4"}).deck;
  EXPECT_EQ(deck.run.steps, 4);
  EXPECT_FALSE(AwaitsData(deck));
  EXPECT_EQ(ParseDeck(epochs, "small", {}).deck.run.epochs, 3);
  EXPECT_EQ(Small({"run.epochs=0"}).run.steps, 20);  // is not a length
}

// A checkpoint names the steps. One that was made before a run (import) may not know them yet.
TEST(Epochs, TheEffectiveDeckReadsBack) {
  const LoadedDeck loaded = Loaded({"run.epochs=2"}), counted = WithStepsOfEpochs(loaded, 240);
  const Deck saved = ParseDeck(EffectiveDeck(counted.deck), "saved").deck;
  EXPECT_EQ(saved.run.steps, 40);
  EXPECT_THAT(Differences(saved, counted), IsEmpty());
  const Deck before = ParseDeck(EffectiveDeck(loaded.deck), "saved").deck;
  EXPECT_EQ(before.run.epochs, 2);
  EXPECT_THAT(Differences(before, counted), IsEmpty());
  const std::vector<DeckDifference> more = Differences(saved, WithStepsOfEpochs(loaded, 252));
  ASSERT_FALSE(more.empty());
  EXPECT_EQ(more[0].Text(), "run.steps = 42 (from run.epochs = 2 of 252 samples), 40 in the checkpoint");
}

// Nothing is judged by an unknown number of steps.
TEST(Epochs, NoEffectIsJudgedBeforeTheyAreKnown) {
  const LoadedDeck loaded = Loaded({"run.epochs=2", "lr.warmup_steps=50", "lr.min_ratio=0.2"});
  EXPECT_THAT(SettingsWithoutEffect(loaded), IsEmpty());
  EXPECT_THAT(SettingsWithoutEffect(WithStepsOfEpochs(loaded, 240)), Not(IsEmpty()));
}

}  // namespace
}  // namespace espalier
