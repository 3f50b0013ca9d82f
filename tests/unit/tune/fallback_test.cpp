// Layouts after the loss of nodes, against searches of every smaller number of nodes.
#include "espalier/tune/fallback.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "espalier/deck/parse.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/error.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

FallbackOptions FewLosses(int losses) {
  FallbackOptions options{.losses = losses};
  options.tune.simulated = 6;
  options.tune.fixed = {"parallel.dp_replicate", "parallel.cp", "parallel.reduce"};
  return options;
}

double BestStepUs(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options) {
  Deck open = deck;
  open.parallel.dp_shard = -1;
  try {
    return Tune(open, ranks, costs, options).ranking[0].step_us;
  } catch (const UserError&) {
    return std::numeric_limits<double>::max();
  }
}

TEST(Fallback, IsAsFastAsTheBestOfAllSmallerNumbersOfNodes) {
  const Deck deck = ShortDeck();
  const Costs costs = CostsOf("h100-8x400g");
  const FallbackOptions options = FewLosses(3);
  const std::vector<Fallback> all = FallbackLayouts(deck, 32, costs, options);
  ASSERT_EQ(all.size(), 3u);
  for (int lost = 1; lost <= 3; ++lost) {
    const Fallback& f = all[static_cast<size_t>(lost - 1)];
    EXPECT_EQ(f.lost, lost);
    EXPECT_EQ(f.left, 4 - lost);
    ASSERT_TRUE(f.layout);
    EXPECT_LE(f.nodes, f.left);
    EXPECT_EQ(f.ranks, 8 * f.nodes);
    const Deck& other = f.layout->deck;
    const Deck::Parallel& p = other.parallel;
    EXPECT_EQ(p.pp * p.dp_replicate * p.dp_shard * p.cp * p.tp, f.ranks);
    EXPECT_EQ(other.batch.global, deck.batch.global);
    EXPECT_EQ(PlanWorld(other, f.ranks).peak_bytes, f.layout->peak_bytes);
    EXPECT_LE(f.layout->peak_bytes, costs.cluster().BytesForPrograms());
    double best_us = std::numeric_limits<double>::max();
    for (int nodes = 1; nodes <= f.left; ++nodes)
      best_us = std::min(best_us, BestStepUs(deck, 8 * nodes, costs, options.tune));
    EXPECT_LE(f.layout->step_us, (1 + kModelError) * best_us) << lost;
  }
  EXPECT_GT(all[2].layout->step_us, 1.5 * all[0].layout->step_us);
}

// Two layers, powers of two in all sizes, and 24 ranks on three nodes: 3 divides nothing.
TEST(Fallback, LeavesANodeAsASpareIfThatManySuitNoLayout) {
  const Deck deck = ShortDeck({"model.layers=2"});
  const Costs costs = CostsOf("h100-8x400g");
  EXPECT_EQ(FastestByFormula(deck, 24, costs, FewLosses(1).tune), std::nullopt);
  const std::vector<Fallback> all = FallbackLayouts(deck, 32, costs, FewLosses(1));
  ASSERT_TRUE(all[0].layout);
  EXPECT_EQ(all[0].left, 3);
  EXPECT_EQ(all[0].nodes, 2);
  EXPECT_EQ(all[0].Spares(), 1);
  EXPECT_EQ(all[0].ranks, 16);
}

TEST(Fallback, IsNothingIfNothingFits) {
  FallbackOptions options = FewLosses(1);
  options.tune.memory_bytes = 1'000'000;
  const std::vector<Fallback> all = FallbackLayouts(ShortDeck(), 16, CostsOf("h100-8x400g"), options);
  EXPECT_FALSE(all[0].layout);
  EXPECT_EQ(all[0].nodes, 0);
}

// A deck's own dp_shard is for its own number of ranks.
TEST(Fallback, TakesADeckWithANumberForDpShard) {
  const Deck deck = ShortDeck({"parallel.dp_shard=16", "model.layers=2"});
  const std::vector<Fallback> all = FallbackLayouts(deck, 16, CostsOf("h100-8x400g"), FewLosses(1));
  ASSERT_TRUE(all[0].layout);
  EXPECT_EQ(all[0].ranks, 8);
}

TEST(Fallback, TheWrittenKeysMakeTheLayout) {
  const Deck deck = ShortDeck({"model.layers=2"});
  const std::vector<Fallback> all = FallbackLayouts(deck, 16, CostsOf("h100-8x400g"), FewLosses(1));
  ASSERT_TRUE(all[0].layout);
  EXPECT_EQ(LayoutName(all[0].layout->deck, all[0].ranks), all[0].layout->layout);
  EXPECT_THAT(AsDeck(*all[0].layout, deck), testing::HasSubstr("[parallel]\n"));
}

TEST(Fallback, AJobCannotLoseAllItsNodes) {
  EXPECT_THROW(FallbackLayouts(ShortDeck(), 16, CostsOf("h100-8x400g"), FewLosses(2)), InvariantError);
}

}  // namespace
}  // namespace espalier
