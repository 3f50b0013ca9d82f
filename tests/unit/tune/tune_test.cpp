// The search as a whole.
#include "espalier/tune/tune.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/program/plan.hpp"
#include "espalier/util/error.hpp"
#include "tune/choose.hpp"
#include "tune/trial.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

/// A small space, so that a search takes a second.
TuneOptions Few(int simulated = 12) {
  TuneOptions options;
  options.simulated = simulated;
  options.fixed = {"parallel.dp_replicate", "parallel.cp", "parallel.reduce"};
  return options;
}

std::string ErrorOf(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options, ExitStatus status) {
  try {
    Tune(deck, ranks, costs, options);
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), status);
    return error.messages().at(0);
  }
  return "";
}

TEST(Tune, RanksWhatItSimulated) {
  const Deck deck = ShortDeck();
  const TuneResult result = Tune(deck, 16, CostsOf("h100-8x400g"), Few());
  ASSERT_GT(result.ranking.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(result.ranking, {}, &Candidate::step_us));
  EXPECT_EQ(result.considered, result.invalid + result.too_large + result.scored);
  EXPECT_EQ(result.compiled, std::ssize(result.ranking) + result.compiled_too_large);
  for (const Candidate& c : result.ranking) {
    EXPECT_LE(c.least_bytes, c.peak_bytes) << c.layout;
    EXPECT_LE(c.peak_bytes, result.memory_bytes) << c.layout;
    const Breakdown& b = c.breakdown;
    double sum = b.compute_us + b.idle_us;
    for (double us : b.exposed_us) sum += us;
    EXPECT_NEAR(sum, c.step_us, 1e-6 * c.step_us) << c.layout;
  }
  EXPECT_NEAR(result.margin, result.ranking[1].step_us / result.ranking[0].step_us - 1, 1e-12);
  for (size_t i = 1; i < result.ranking.size(); ++i)
    EXPECT_EQ(i <= result.near_ties, result.ranking[i].step_us <= (1 + kModelError) * result.ranking[0].step_us) << i;
  EXPECT_LE(result.choice, result.near_ties);
  EXPECT_FALSE(result.rejections.empty());
}

TEST(Tune, TriesTheDecksOwnLayout) {
  const Deck deck = ShortDeck({"parallel.tp=2", "parallel.dp_shard=8"});
  const TuneResult result = Tune(deck, 16, CostsOf("h100-8x400g"), Few(1));
  EXPECT_EQ(result.compiled, 2);
  EXPECT_THAT(result.ranking, testing::Contains(testing::Field(&Candidate::layout, LayoutName(deck, 16))));
}

// The two that are tried first are too large.
TEST(Tune, TriesMoreWhereNothingFits) {
  TuneOptions options = Few(2);
  for (int64_t megabytes : {6700, 8500}) {
    options.memory_bytes = megabytes * 1'000'000;
    const TuneResult result = Tune(ShortDeck(), 16, CostsOf("h100-8x400g"), options);
    EXPECT_GE(result.compiled_too_large, 2) << megabytes;
    EXPECT_GT(result.expected_too_large, 0) << megabytes;
    EXPECT_FALSE(result.ranking.empty()) << megabytes;
  }
}

TEST(Tune, DoesNotDependOnTheNumberOfThreads) {
  const Deck deck = ShortDeck();
  const Costs costs = CostsOf("a100-8x200g");
  TuneOptions one = Few(8), three = Few(8);
  one.threads = 1;
  three.threads = 3;
  const TuneResult a = Tune(deck, 16, costs, one), b = Tune(deck, 16, costs, three);
  ASSERT_EQ(a.ranking.size(), b.ranking.size());
  EXPECT_EQ(a.choice, b.choice);
  EXPECT_EQ(a.considered, b.considered);
  for (size_t i = 0; i < a.ranking.size(); ++i) {
    EXPECT_EQ(a.ranking[i].layout, b.ranking[i].layout);
    EXPECT_EQ(a.ranking[i].step_us, b.ranking[i].step_us);
    EXPECT_EQ(a.ranking[i].peak_bytes, b.ranking[i].peak_bytes);
  }
}

TEST(Tune, PeakIsThatOfThePlan) {
  const TuneResult result = Tune(ShortDeck(), 8, CostsOf("h100-8x400g"), Few(4));
  for (const Candidate& c : result.ranking) EXPECT_EQ(PlanWorld(c.deck, 8).peak_bytes, c.peak_bytes) << c.layout;
}

TEST(Tune, TheBaselineIsTheFastestConventionalLayout) {
  const TuneResult result = Tune(ShortDeck(), 16, CostsOf("h100-8x400g"), Few());
  ASSERT_TRUE(result.baseline);
  for (size_t i = 0; i < result.ranking.size(); ++i) {
    const Deck& deck = result.ranking[i].deck;
    const bool conventional = (deck.parallel.pp == 1 || deck.pipeline.schedule == ScheduleKind::k1F1B ||
                               deck.pipeline.schedule == ScheduleKind::kInterleaved) &&
                              deck.parallel.cp == 1 && deck.parallel.dp_replicate == 1 && !deck.overlap.interleave;
    if (i <= *result.baseline) {
      EXPECT_EQ(conventional, i == *result.baseline) << result.ranking[i].layout;
    }
  }
}

// Every size must suit the layouts; times are for batch.global.
TEST(Tune, ARampLeavesOutWhatItsSizesDoNotSuit) {
  const int64_t global = ShortDeck().batch.global;
  ASSERT_EQ(global % 16, 0);
  const TuneResult plain = Tune(ShortDeck(), 8, CostsOf("h100-8x400g"), Few(4));
  const TuneResult ramp =
      Tune(ShortDeck({fmt::format("batch.ramp_start={}", global / 16)}), 8, CostsOf("h100-8x400g"), Few(4));
  EXPECT_GT(ramp.invalid, plain.invalid);
  for (const Candidate& c : ramp.ranking) {
    const Deck::Parallel& p = c.deck.parallel;
    EXPECT_EQ(c.deck.batch.ramp_start % (c.deck.batch.micro * p.dp_replicate * p.dp_shard), 0) << c.layout;
    EXPECT_EQ(PlanWorld(c.deck, 8).peak_bytes, c.peak_bytes) << c.layout;
    for (const Candidate& other : plain.ranking)
      if (other.layout == c.layout) {
        EXPECT_EQ(c.step_us, other.step_us);
      }
  }
}

TEST(Tune, TakesModelsWithExpertsInSomeLayers) {
  std::vector<std::string> keys = {"experts.count=8", "experts.per_token=2", "experts.ffn_dim=1024", "parallel.ep=2"};
  TuneOptions options = Few(4);
  options.fixed = {"parallel.ep"};
  const auto considered = [&] {
    const TuneResult result = Tune(ShortDeck(keys), 4, CostsOf("h100-8x400g"), options);
    for (const Candidate& c : result.ranking) EXPECT_EQ(PlanWorld(c.deck, 4).peak_bytes, c.peak_bytes) << c.layout;
    EXPECT_FALSE(result.ranking.empty());
    return result.considered;
  };
  const auto all = static_cast<double>(considered());
  for (const char* some : {"experts.first_layer=1", "experts.every=2"}) {
    keys.emplace_back(some);
    EXPECT_NEAR(static_cast<double>(considered()), all, 0.02 * all) << some;
  }
}

TEST(Tune, FixedKeysKeepTheDecksValue) {
  const Deck deck = ShortDeck({"parallel.tp=2", "parallel.pp=2", "pipeline.schedule=gpipe", "recompute.mode=full"});
  TuneOptions options = Few(6);
  options.fixed = {"parallel.tp", "parallel.pp", "pipeline.schedule", "recompute.mode"};
  for (const Candidate& c : Tune(deck, 16, CostsOf("h100-8x400g"), options).ranking) {
    EXPECT_EQ(c.deck.parallel.tp, 2);
    EXPECT_EQ(c.deck.parallel.pp, 2);
    EXPECT_EQ(c.deck.pipeline.schedule, ScheduleKind::kGPipe);
    EXPECT_EQ(c.deck.recompute.mode, RecomputeMode::kFull);
  }
}

TEST(Tune, RefusesUnknownFixedKeys) {
  TuneOptions options = Few();
  options.fixed = {"parallel.pt"};
  EXPECT_THAT(ErrorOf(ShortDeck(), 8, CostsOf("h100-8x400g"), options, ExitStatus::kDeck),
              testing::AllOf(HasSubstr("--fix parallel.pt"), HasSubstr("did you mean parallel.")));
}

TEST(Tune, SaysWhatIsWrongIfNoLayoutIsValid) {
  EXPECT_THAT(
      ErrorOf(ShortDeck({"batch.global=1", "model.layers=1"}), 11, CostsOf("h100-8x400g"), Few(), ExitStatus::kDeck),
      HasSubstr("batch"));
}

TEST(Tune, NamesTheSmallestIfNothingFits) {
  TuneOptions options = Few();
  options.memory_bytes = 1'000'000'000;
  EXPECT_THAT(ErrorOf(ShortDeck(), 8, CostsOf("h100-8x400g"), options, ExitStatus::kDoesNotFit),
              testing::AllOf(HasSubstr("fits 1 GB"), HasSubstr("the smallest"), HasSubstr("full")));
}

TEST(Tune, TheDeckOfAChoiceIsTheChoice) {
  const Deck deck = ShortDeck();
  const TuneResult result = Tune(deck, 16, CostsOf("h100-8x400g"), Few(6));
  for (const Candidate& c : result.ranking) {
    std::vector<std::string> overrides;
    std::string section;
    std::istringstream lines(AsDeck(c, deck));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("["))
        section = line.substr(1, line.find(']') - 1);
      else if (const size_t at = line.find(" = "); at != line.npos)
        overrides.push_back(section + "." + line.substr(0, at) + "=" + line.substr(at + 3));
    }
    EXPECT_EQ(LayoutOf(ShortDeck(overrides)), LayoutOf(c.deck)) << AsDeck(c, deck);
    EXPECT_EQ(ShortDeck(overrides).pipeline.split, c.deck.pipeline.split) << AsDeck(c, deck);
  }
}

/// Rates of a cluster, each off by up to `error`.
Cluster Perturbed(Cluster cluster, double error, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> factor(1 - error, 1 + error);
  Cluster::Device& device = cluster.compute;
  for (double* x : {&device.matmul_share, &device.memory_bytes_per_us, &device.kernel_us, &cluster.node.bytes_per_us,
                    &cluster.node.pair_bytes_per_us, &cluster.node.base_us, &cluster.node.hop_us,
                    &cluster.network.bytes_per_us, &cluster.network.pair_bytes_per_us, &cluster.network.base_us,
                    &cluster.network.hop_us, &cluster.network.message_us})
    *x *= factor(random);
  for (AttentionRates& rates : device.attention) {
    const double f = factor(random);
    for (auto& [keys, rate] : rates.causal) rate *= f;
    for (auto& [keys, rate] : rates.full) rate *= f;
  }
  return cluster;
}

TEST(Tune, ChoosesWellWithCostsThatAreTenPercentOff) {
  const Deck deck = ShortDeck();
  const Costs truth = CostsOf("a100-8x200g");
  const TuneResult best = Tune(deck, 16, truth, Few());
  double worst = 0;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    const TuneResult result = Tune(deck, 16, Costs(Perturbed(truth.cluster(), 0.1, seed)), Few());
    const Trial trial = Try(result.ranking[result.choice].deck, 16, truth, result.memory_bytes);
    ASSERT_TRUE(trial.fits);
    worst = std::max(worst, trial.step_us / best.ranking[0].step_us - 1);
  }
  std::printf("largest regret of five choices: %.2f %%\n", 100 * worst);
  EXPECT_LE(worst, 0.06);
}

TEST(NearestThatFit, NamesSettingsWhosePeakFits) {
  const Deck deck = ShortDeck({"parallel.dp_shard=8", "batch.micro=4"});
  const int64_t peak = PeakBytes(deck, 8);
  const std::vector<std::string> settings = NearestThatFit(deck, 8, peak - 1);
  ASSERT_FALSE(settings.empty());
  EXPECT_LE(settings.size(), 3u);
  EXPECT_THAT(settings[0], HasSubstr("batch.micro = 2"));
  EXPECT_TRUE(NearestThatFit(deck, 8, 1000).empty());
}

TEST(NearestThatFit, ChangesDegreesIfNothingElseHelps) {
  const Deck deck = ShortDeck({"parallel.dp_replicate=8", "parallel.dp_shard=1", "recompute.mode=full"});
  const std::vector<std::string> settings = NearestThatFit(deck, 8, PeakBytes(deck, 8) / 2);
  ASSERT_FALSE(settings.empty());
  EXPECT_THAT(settings[0], HasSubstr("parallel."));
}

TEST(Choose, TakesTheFastestAndTheBestOfEachKind) {
  std::vector<Scored> scored;
  for (int i = 0; i < 40; ++i) {
    Scored s;
    s.us = 100 + i;
    s.layout.pp = 2;
    s.layout.micro = i + 1;
    if (i == 30) s.layout.schedule = ScheduleKind::kGPipe;
    if (i == 35) s.layout.tp = 4;
    scored.push_back(s);
  }
  const std::vector<int64_t> instructions(40, 10);
  const std::vector<size_t> chosen = Choose(scored, instructions, {10, 1000});
  EXPECT_EQ(chosen.size(), 10u);
  EXPECT_EQ(chosen[0], 0u);
  EXPECT_THAT(chosen, testing::Contains(30u));
  EXPECT_THAT(chosen, testing::Contains(35u));
  EXPECT_EQ(Choose(scored, instructions, {10, 45}).size(), 4u) << "no more instructions than there is room for";
}

}  // namespace
}  // namespace espalier
