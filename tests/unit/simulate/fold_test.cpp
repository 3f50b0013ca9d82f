// Ranks that must have the same times are simulated once; no result changes by a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "espalier/util/error.hpp"
#include "simulate/simulate_testing.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

void ExpectSameRank(const RankTimes& a, const RankTimes& b, size_t rank) {
  EXPECT_EQ(a.end_us, b.end_us) << "rank " << rank;
  EXPECT_EQ(a.stage, b.stage);
  EXPECT_EQ(a.breakdown.compute_us, b.breakdown.compute_us) << "rank " << rank;
  EXPECT_EQ(a.breakdown.idle_us, b.breakdown.idle_us) << "rank " << rank;
  EXPECT_EQ(a.by_source_us, b.by_source_us) << "rank " << rank;
  EXPECT_EQ(a.parts, b.parts) << "rank " << rank;
  for (CommAxis axis : kCommAxes) {
    EXPECT_EQ(a.breakdown.exposed_us[axis], b.breakdown.exposed_us[axis]) << "rank " << rank;
    EXPECT_EQ(a.breakdown.hidden_us[axis], b.breakdown.hidden_us[axis]) << "rank " << rank;
  }
}

/// Compares bit by bit. Returns the number of classes.
template <typename... Costs>
size_t ExpectFoldChangesNothing(const CompiledWorld& world, SimulateOptions options, const Costs&... costs) {
  const Simulation folded = Simulate(world.Programs(), costs..., options);
  options.fold = false;
  const Simulation all = Simulate(world.Programs(), costs..., options);
  EXPECT_EQ(folded.step_us, all.step_us);
  EXPECT_EQ(std::ssize(all.classes), world.Ranks());
  EXPECT_LE(folded.classes.size(), all.classes.size());
  int ranks = 0;
  for (const RankTimes& of_class : folded.classes) ranks += of_class.ranks;
  EXPECT_EQ(ranks, world.Ranks());
  for (size_t rank = 0; rank < all.class_of_rank.size() && !testing::Test::HasFailure(); ++rank)
    ExpectSameRank(folded.classes[static_cast<size_t>(folded.class_of_rank[rank])],
                   all.classes[static_cast<size_t>(all.class_of_rank[rank])], rank);
  return folded.classes.size();
}

Cluster H100(int ranks_per_node) {
  Cluster cluster = LoadCluster(InTree("inputs/clusters/h100-8x400g.toml"));
  cluster.ranks_per_node = ranks_per_node;
  return cluster;
}

std::vector<Slow> DrawSlow(std::mt19937& random, int ranks) {
  std::vector<Slow> slow;
  for (int i = 0; i < 2; ++i) {
    const int first = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const int last = std::min(ranks - 1, first + static_cast<int>(random() % 3));
    slow.push_back({random() % 2 == 0 ? Slow::What::kCompute : Slow::What::kLinks, first, last,
                    1 + static_cast<double>(random() % 8) / 4});
  }
  return slow;
}

TEST(Fold, ChangesNoBitOfAnyLayout) {
  std::mt19937 random(1);
  for (const Case& layout : AllCases()) {
    const CompiledWorld world(layout.overrides, layout.ranks);
    ExpectFoldChangesNothing(world, {}, RandomCosts(world, 7), SlowingCluster());
    for (const bool interference : {true, false}) {
      SimulateOptions options;
      options.interference = interference;
      options.slow = DrawSlow(random, world.Ranks());
      ExpectFoldChangesNothing(world, options, RandomCosts(world, random()), SlowingCluster());
    }
    if (HasFailure()) FAIL() << testing::PrintToString(layout);
  }
}

// Places of groups and distances of peers follow no axis, and transfers of equal groups take different times.
TEST(Fold, ChangesNoBitOnNodesOfAnySize) {
  std::mt19937 random(2);
  for (const Case& layout : AllCases()) {
    const CompiledWorld world(layout.overrides, layout.ranks);
    for (int ranks_per_node : {1, 2, 3, 5, 7, 8}) {
      SimulateOptions options;
      if (random() % 2 == 0) options.slow = DrawSlow(random, world.Ranks());
      ExpectFoldChangesNothing(world, options, Costs(H100(ranks_per_node)));
    }
    if (HasFailure()) FAIL() << testing::PrintToString(layout);
  }
}

// Ranks with different experts have different times then.
TEST(Fold, ChangesNoBitUnderAnUnevenRouting) {
  const std::vector<std::string> experts = {"experts.count=8", "experts.per_token=2", "experts.ffn_dim=8",
                                            "experts.buffer=1"};
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallel.dp_shard=8", "parallel.ep=4"},
           {"parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2", "parallel.ep=4"},
           {"parallel.dp_replicate=2", "parallel.dp_shard=2", "parallel.cp=2", "parallel.ep=2"}}) {
    std::vector<std::string> all = experts;
    all.insert(all.end(), layout.begin(), layout.end());
    const CompiledWorld world(all, 8);
    const Routing skewed = SkewedRouting(world.compilation.deck.model, 0.7, 3);
    const size_t balanced = ExpectFoldChangesNothing(world, {}, Costs(H100(4))),
                 uneven = ExpectFoldChangesNothing(world, {}, Costs(H100(4), skewed));
    EXPECT_GT(uneven, balanced) << testing::PrintToString(layout);
    EXPECT_GT(Simulate(world.Programs(), Costs(H100(4), skewed)).step_us,
              Simulate(world.Programs(), Costs(H100(4))).step_us);
  }
}

// More ranks, and sizes that the degrees do not divide, so that one stage has several programs.
TEST(Fold, ChangesNoBitWhereShardsAreUneven) {
  std::mt19937 random(3);
  size_t fewest = 1000, most = 0;
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"parallel.pp=2", "parallel.dp_shard=5", "parallel.tp=2", "batch.global=20"},
           {"parallel.pp=4", "parallel.dp_shard=3", "parallel.tp=4", "batch.global=24"},
           {"parallel.pp=2", "parallel.dp_replicate=2", "parallel.dp_shard=3", "parallel.tp=2", "batch.global=24"},
           {"parallel.pp=2", "parallel.dp_shard=3", "parallel.cp=2", "parallel.tp=2", "batch.global=24",
            "parallel.context=all_to_all", "model.heads=8", "model.kv_heads=8"},
           {"parallel.pp=2", "parallel.dp_shard=7", "parallel.tp=1", "batch.global=28", "parallel.zero=2"}}) {
    int ranks = 1;
    for (const std::string& text : overrides)
      if (text.starts_with("parallel.") && text.find('=') != std::string::npos && std::isdigit(text.back()) != 0 &&
          text.find("zero") == std::string::npos)
        ranks *= std::stoi(text.substr(text.find('=') + 1));
    const CompiledWorld world(overrides, ranks);
    for (int ranks_per_node : {3, 4, 8}) {
      const size_t classes = ExpectFoldChangesNothing(world, {}, Costs(H100(ranks_per_node)));
      fewest = std::min(fewest, classes);
      most = std::max(most, classes);
    }
    SimulateOptions options;
    options.slow = DrawSlow(random, ranks);
    ExpectFoldChangesNothing(world, options, RandomCosts(world, random()), SlowingCluster());
    if (HasFailure()) FAIL() << testing::PrintToString(overrides);
  }
  EXPECT_GE(fewest, 4u);  // otherwise nothing was uneven
  EXPECT_GT(most, 20u);
}

TEST(Fold, OneClassPerProgramIfNothingElseDiffers) {
  const CompiledWorld world({"parallel.pp=4", "parallel.dp_shard=8", "parallel.tp=2", "batch.global=64"}, 64);
  const Simulation s = Simulate(world.Programs(), Costs(H100(8)));
  EXPECT_EQ(s.classes.size(), world.programs.size());
  for (int rank = 0; rank < 64; ++rank)
    EXPECT_EQ(world.representative[static_cast<size_t>(rank)],
              s.classes[static_cast<size_t>(s.class_of_rank[static_cast<size_t>(rank)])].rank);
}

TEST(Fold, ASlowRankHasAClassOfItsOwn) {
  const CompiledWorld world({"parallel.dp_shard=4", "parallel.tp=2", "model.vocab=256"}, 8);
  ASSERT_EQ(world.programs.size(), 1u);
  SimulateOptions options;
  options.slow = {{Slow::What::kCompute, 5, 5, 2}};
  const Simulation s = Simulate(world.Programs(), RandomCosts(world, 1), SlowingCluster(), options);
  // Rank 5, rank 4 of its tp group, the ranks of its dp group, and the rest.
  EXPECT_THAT(s.class_of_rank, testing::ElementsAre(0, 1, 0, 1, 2, 3, 0, 1));
  EXPECT_EQ(s.classes[0].ranks, 3);
  EXPECT_EQ(s.classes[3].rank, 5);
}

// Costs of a class are the costs of its lowest rank. Only an all_reduce cuts its elements into shards that may differ
// by one element, and the lowest rank has the larger one.
TEST(Fold, RanksOfAClassHaveEqualCosts) {
  for (const Case& layout : AllCases()) {
    const CompiledWorld world(layout.overrides, layout.ranks);
    for (int ranks_per_node : {3, 4}) {
      const Costs costs(H100(ranks_per_node));
      const Simulation s = Simulate(world.Programs(), costs);
      for (int rank = 0; rank < layout.ranks; ++rank) {
        const int lowest = s.classes[static_cast<size_t>(s.class_of_rank[static_cast<size_t>(rank)])].rank;
        const Program& program = world.Of(rank);
        const auto a = CostInstructions(costs, program, world.compilation.mesh.CoordinateOf(rank)),
                   b = CostInstructions(costs, program, world.compilation.mesh.CoordinateOf(lowest));
        for (size_t i = 0; i < a.size(); ++i) {
          const auto where = [&] {
            return fmt::format("{} ranks {} and {}, {}", testing::PrintToString(layout), rank, lowest,
                               Describe(program, static_cast<int>(i)));
          };
          ASSERT_EQ(a[i].port, b[i].port) << where();
          const bool rounds = program.graph->op(program.instructions[i].op).kind == OpKind::kAllReduce;
          ASSERT_LE(a[i].us, b[i].us) << where();
          ASSERT_GE(a[i].us, rounds ? 0.99 * b[i].us : b[i].us) << where();
        }
      }
    }
  }
}

TEST(Fold, SlowRanksMustExist) {
  const CompiledWorld world({}, 1);
  SimulateOptions options;
  options.slow = {{Slow::What::kCompute, 0, 1, 2}};
  EXPECT_THROW(Simulate(world.Programs(), RandomCosts(world, 1), SlowingCluster(), options), InvariantError);
}

}  // namespace
}  // namespace espalier
