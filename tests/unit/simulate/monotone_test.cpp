// Less work and faster links never make a step slower; a slow rank never makes it faster. If transfers share ports,
// scheduling anomalies are possible: they are demonstrated and bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "simulate/hand_made.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

/// A deck, layout and schedule.
struct RandomDeck {
  std::vector<std::string> overrides;
  int ranks = 1;
};

RandomDeck DrawDeck(std::mt19937& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random() % values.size()]; };
  const int pp = one_of({1, 2, 4}), dp = one_of({1, 2, 3}), tp = one_of({1, 2}), cp = one_of({1, 1, 2});
  const PipelineCase pipeline = kPipelines[random() % std::size(kPipelines)];
  const char* contexts[] = {"ring", "all_gather", "all_to_all"};
  RandomDeck deck{{}, pp * dp * tp * cp};
  deck.overrides = {fmt::format("parallel.dp_shard={}", dp), fmt::format("parallel.tp={}", tp),
                    fmt::format("parallel.cp={}", cp), "model.heads=8", "model.kv_heads=8"};
  if (cp > 1) deck.overrides.push_back(fmt::format("parallel.context={}", contexts[random() % 3]));
  const std::vector<std::string>& variation = kVariations[random() % kVariations.size()];
  deck.overrides.insert(deck.overrides.end(), variation.begin(), variation.end());
  const int micro = std::ranges::find(variation, "batch.micro=2") == variation.end() ? 1 : 2;
  deck.overrides = PipelineDeck(pp > 1 ? pipeline : PipelineCase{"1f1b", 1}, pp, micro * dp * one_of({8, 9, 11}),
                                std::move(deck.overrides));
  return deck;
}

using CostsOfRank = std::function<std::vector<InstructionCost>(int)>;

/// Every cost is multiplied by 1, 1/2, ... or 0, with the same factor for an op on all ranks.
CostsOfRank Cheaper(const CompiledWorld& world, const CostsOfRank& costs, uint64_t seed) {
  return [&world, costs, seed](int rank) {
    std::vector<InstructionCost> cheaper = costs(rank);
    const Program& program = world.Of(rank);
    for (size_t i = 0; i < cheaper.size(); ++i) {
      const int op = program.instructions[i].op - (program.graph->op(program.instructions[i].op).kind == OpKind::kRecv);
      const double draw = Draw(seed, static_cast<uint64_t>(op));
      cheaper[i].us *= draw < 0.7 ? 1 : draw < 0.8 ? 0.75 : draw < 0.95 ? 0.5 : 0;
    }
    return cheaper;
  };
}

void ExpectNoRankSlower(const Simulation& faster, const Simulation& slower) {
  EXPECT_LE(faster.step_us, slower.step_us);
  for (size_t rank = 0; rank < slower.class_of_rank.size(); ++rank)
    EXPECT_LE(faster.classes[static_cast<size_t>(faster.class_of_rank[rank])].end_us,
              slower.classes[static_cast<size_t>(slower.class_of_rank[rank])].end_us)
        << "rank " << rank;
}

// A step without interference is a formula of sums and maxima, which rounding keeps monotone.
TEST(Monotone, LessWorkNeverMakesARankSlower) {
  std::mt19937 random(11);
  SimulateOptions alone;
  alone.interference = false;
  for (int round = 0; round < 60; ++round) {
    const RandomDeck deck = DrawDeck(random);
    const CompiledWorld world(deck.overrides, deck.ranks);
    const CostsOfRank costs = RandomCosts(world, random());
    const Simulation s = Simulate(world.Programs(), costs, {}, alone);
    for (int change = 0; change < 3; ++change)
      ExpectNoRankSlower(Simulate(world.Programs(), Cheaper(world, costs, random()), {}, alone), s);
    SimulateOptions slow = alone;
    const int rank = static_cast<int>(random() % static_cast<unsigned>(deck.ranks));
    slow.slow = {{round % 2 == 0 ? Slow::What::kCompute : Slow::What::kLinks, rank, rank, 1.5}};
    ExpectNoRankSlower(s, Simulate(world.Programs(), costs, {}, slow));
    if (HasFailure()) FAIL() << testing::PrintToString(deck.overrides);
  }
}

TEST(Monotone, FasterLinksAndDevicesNeverMakeARankSlower) {
  std::mt19937 random(12);
  SimulateOptions alone;
  alone.interference = false;
  const Cluster h100 = LoadCluster(InTree("inputs/clusters/h100-8x400g.toml"));
  const auto widen = [](LinkModel& link) { link.bytes_per_us *= 2, link.pair_bytes_per_us *= 2; };
  for (int round = 0; round < 20; ++round) {
    const RandomDeck deck = DrawDeck(random);
    const CompiledWorld world(deck.overrides, deck.ranks);
    const Simulation s = Simulate(world.Programs(), Costs(h100), alone);
    for (int change = 0; change < 4; ++change) {
      Cluster better = h100;
      if (change == 0) widen(better.node);
      if (change == 1) widen(better.network);
      if (change == 2) better.compute.memory_bytes_per_us *= 1.5;
      if (change == 3) better.compute.bf16_tflops *= 1.5, better.compute.fp32_tflops *= 1.5;
      ExpectNoRankSlower(Simulate(world.Programs(), Costs(better), alone), s);
    }
    if (HasFailure()) FAIL() << testing::PrintToString(deck.overrides);
  }
}

// Interference only adds time, at most by the factors of the slowest kernels and the smallest shares.
TEST(Monotone, InterferenceAddsABoundedTime) {
  std::mt19937 random(13);
  const Cluster cluster = SlowingCluster();
  constexpr double kMaxSharers = 4;  // in one direction of a port: tp, cp, dp, and a send or a recv
  const double most = std::max(kMaxSharers, 1 / (1 - cluster.node_slowdown) / (1 - cluster.network_slowdown));
  SimulateOptions alone;
  alone.interference = false;
  for (int round = 0; round < 40; ++round) {
    const RandomDeck deck = DrawDeck(random);
    const CompiledWorld world(deck.overrides, deck.ranks);
    const CostsOfRank costs = RandomCosts(world, random(), 20);
    const double step = Simulate(world.Programs(), costs, cluster).step_us,
                 least = Simulate(world.Programs(), costs, cluster, alone).step_us;
    EXPECT_GE(step, least * (1 - 1e-12));
    EXPECT_LE(step, least * most);
  }
}

// The anomaly, by hand: the last kernel only waits for transfer A. Transfer B follows C. The earlier C ends, the longer
// B shares A's port.
TEST(Anomaly, ATransferThatEndsEarlierLetsAnotherOneShareAPort) {
  const auto step_of = [](double c_us) {
    HandMade world(1, 2);
    const int a = world.Collective(Axis::kTp), b = world.Collective(Axis::kTp), c = world.Collective(Axis::kTp);
    for (int rank : {0, 1}) {
      world.Join(rank, c, Lane::kCp, c_us);
      world.Join(rank, a, Lane::kTp, 8, Port::kNetwork);
      world.Join(rank, b, Lane::kDp, 8, Port::kNetwork, {{Lane::kCp, 1}});
      world.Kernel(rank, 16, {{Lane::kTp, 1}});
    }
    return world.Run({}, {}).step_us;
  };
  EXPECT_EQ(step_of(8), 24);
  EXPECT_EQ(step_of(4), 28);  // from 4 on both have half of the port, so A ends at 12
  EXPECT_EQ(step_of(0), 32);
}

/// How much faster a step becomes, relatively, if the kernels of one rank take 5/4 of their time.
double GainOfASlowRank(const CompiledWorld& world, const CostsOfRank& costs, int rank) {
  SimulateOptions slow;
  slow.slow = {{Slow::What::kCompute, rank, rank, 1.25}};
  return Simulate(world.Programs(), costs, SlowingCluster()).step_us /
             Simulate(world.Programs(), costs, SlowingCluster(), slow).step_us -
         1;
}

TEST(Anomaly, ASlowRankMayMakeAStepSlightlyFaster) {
  const CompiledWorld world(
      {"parallel.dp_shard=1", "parallel.tp=2", "parallel.cp=2", "model.heads=8", "model.kv_heads=8",
       "parallel.context=ring", "parallel.zero=2", "overlap.gradients=false", "overlap.interleave=false",
       "parallel.pp=4", "pipeline.schedule=1f1b", "pipeline.chunks=1", "batch.global=9", "model.layers=5"},
      16);
  const double gain = GainOfASlowRank(world, RandomCosts(world, 51, 40), 8);
  EXPECT_GT(gain, 0.0005);
  EXPECT_LT(gain, 0.01);
}

TEST(Anomaly, IsSmallOnRandomDecks) {
  std::mt19937 random(14);
  int steps = 0, anomalies = 0;
  double worst = 0;
  const auto count = [&](double gain) {
    ++steps;
    anomalies += gain > 1e-9 ? 1 : 0;
    worst = std::max(worst, gain);
  };
  for (int round = 0; round < 40; ++round) {
    const RandomDeck deck = DrawDeck(random);
    const CompiledWorld world(deck.overrides, deck.ranks);
    const CostsOfRank costs = RandomCosts(world, random(), 40);
    const double step = Simulate(world.Programs(), costs, SlowingCluster()).step_us;
    for (int rank = 0; rank < deck.ranks; ++rank) count(GainOfASlowRank(world, costs, rank));
    count(Simulate(world.Programs(), Cheaper(world, costs, random()), SlowingCluster()).step_us / step - 1);
  }
  EXPECT_LT(worst, 0.02);
  EXPECT_LT(anomalies, steps / 10);
  RecordProperty("worst", fmt::format("{}", worst));
}

}  // namespace
}  // namespace espalier
