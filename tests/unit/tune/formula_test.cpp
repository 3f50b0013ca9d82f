// The formula of a step: exact if its premises hold, and otherwise in the order of the simulator.
#include "tune/formula.hpp"

#include <gtest/gtest.h>

#include "tune/space.hpp"
#include "tune/trial.hpp"
#include "tune_testing.hpp"

namespace espalier {
namespace {

/// Uniform chunks of one layer, without communication, embedding, head and update.
double FormulaOf(ScheduleKind kind, int stages, int chunks, int microbatches, RoleCosts costs,
                 bool interleave = false) {
  LayerProfile profile;
  profile.forward[Part::kLayer].us = costs.f;
  profile.backward[Part::kLayer].us = costs.b + costs.w;
  profile.w_us[Part::kLayer] = costs.w;
  Layout layout;
  layout.pp = stages;
  layout.schedule = kind;
  layout.chunks = chunks;
  layout.interleave = interleave;
  const std::vector<int64_t> layers(static_cast<size_t>(stages * chunks), 1);
  const Schedule schedule = MakeSchedule(TraitsOf(kind), stages, chunks, microbatches, layout.Steady());
  return FormulaUs({profile, layout, FlightsOf(schedule), layers, {}, 0, microbatches});
}

TEST(Formula, IsTheReplayOfUniformSchedules) {
  for (const RoleCosts costs : {RoleCosts{1, 1, 1}, RoleCosts{2, 2.5, 1.5}})
    for (const int p : {2, 4, 8})
      for (const auto& [kind, chunks] : std::vector<std::pair<ScheduleKind, int>>{{ScheduleKind::k1F1B, 1},
                                                                                  {ScheduleKind::kGPipe, 1},
                                                                                  {ScheduleKind::kInterleaved, 2},
                                                                                  {ScheduleKind::kInterleaved, 3},
                                                                                  {ScheduleKind::kZeroBubbleH1, 1},
                                                                                  {ScheduleKind::kZeroBubbleV, 2}}) {
        const int m = 4 * p;
        const double replay = Validate(MakeSchedule(TraitsOf(kind), p, chunks, m), costs).makespan;
        EXPECT_NEAR(FormulaOf(kind, p, chunks, m, costs), replay, 1e-9 * replay) << Name(kind) << " " << p;
        // Without communication nothing can be hidden.
        EXPECT_EQ(FormulaOf(kind, p, chunks, m, costs, true), FormulaOf(kind, p, chunks, m, costs));
      }
}

TEST(Formula, BoundsDualPipeV) {
  for (const int p : {2, 4, 8}) {
    const RoleCosts costs{2, 2, 2};
    const double replay = Validate(DualPipeV(p, 4 * p), costs).makespan;
    EXPECT_NEAR(FormulaOf(ScheduleKind::kDualPipeV, p, 2, 4 * p, costs), replay, 0.1 * replay) << p;
  }
}

struct Scores {
  std::vector<Scored> fitting;  ///< ascending by formula
  std::vector<double> formula_us, simulated_us;
};

/// Scores all layouts that fit, and simulates every `stride`-th of them.
Scores ScoreAndSimulate(const Deck& deck, int ranks, const Costs& costs, const std::vector<std::string>& keys,
                        size_t most) {
  const FixedKeys fixed(keys, deck);
  const Cluster::Device& device = costs.cluster().compute;
  const SearchContext context{deck, ranks, costs, device.memory_bytes - device.reserved_bytes, fixed};
  FlightsCache flights;
  Scores scores;
  SpaceCounts counts;
  for (const Group& group : GroupsOf(context).groups) Scorer(context, group, flights).ScoreAll(scores.fitting, counts);
  std::ranges::sort(scores.fitting, [](const Scored& a, const Scored& b) {
    return std::tie(a.us, a.layout) < std::tie(b.us, b.layout);
  });
  const size_t stride = std::max<size_t>(1, scores.fitting.size() / most);
  for (size_t i = 0; i < scores.fitting.size(); i += stride) {
    const Trial trial = Try(WithLayout(deck, scores.fitting[i].layout, {}), ranks, costs, context.memory_bytes);
    if (!trial.fits) continue;
    scores.formula_us.push_back(scores.fitting[i].us);
    scores.simulated_us.push_back(trial.step_us);
  }
  return scores;
}

TEST(Formula, OrdersLayoutsAsTheSimulatorDoes) {
  for (const auto& [cluster, ranks] : {std::pair("h100-8x400g", 16), std::pair("a100-8x200g", 32)}) {
    const Scores scores = ScoreAndSimulate(ShortDeck(), ranks, CostsOf(cluster), {}, 150);
    ASSERT_GT(scores.formula_us.size(), 30u);
    const double correlation = RankCorrelation(scores.formula_us, scores.simulated_us);
    std::printf("%s, %d ranks: rank correlation %.3f of %zu layouts\n", cluster, ranks, correlation,
                scores.formula_us.size());
    EXPECT_GE(correlation, 0.9) << cluster;
  }
}

TEST(Formula, HasTheSimulatedBestAmongItsFirstFifty) {
  const std::vector<std::pair<Deck, int>> decks = {{ShortDeck({"batch.global=32", "parallel.dp_shard=8"}), 8},
                                                   {ShortDeck({"model.layers=8", "model.seq_len=8192"}), 16},
                                                   {ShortDeck({"model.vocab=128256", "batch.global=16"}), 16}};
  // Few enough layouts that every one can be simulated.
  const std::vector<std::string> fixed = {"parallel.dp_replicate", "parallel.reduce", "parallel.zero",
                                          "recompute.regather",    "batch.micro",     "parallel.context",
                                          "recompute.mode"};
  for (const auto& [deck, ranks] : decks) {
    const Scores scores = ScoreAndSimulate(deck, ranks, CostsOf("h100-8x400g"), fixed, 1000);
    ASSERT_GT(scores.simulated_us.size(), 20u);
    const auto best = std::ranges::min_element(scores.simulated_us) - scores.simulated_us.begin();
    std::printf("%d ranks: the simulated best of %zu is number %td by formula\n", ranks, scores.simulated_us.size(),
                best + 1);
    EXPECT_LT(best, 50);
  }
}

}  // namespace
}  // namespace espalier
