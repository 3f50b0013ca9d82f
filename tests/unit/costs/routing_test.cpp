// Loads of experts, and what they do to times of kernels on rows.
#include "espalier/costs/routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "espalier/costs/costs.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/program/compile.hpp"
#include "source_tree.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(Routing, IsBalancedByDefault) {
  const Routing routing;
  EXPECT_TRUE(routing.IsBalanced());
  EXPECT_EQ(routing.Load(3, {2, 4}), 1);
  EXPECT_TRUE(routing.OfTheFullestRank().IsBalanced());
}

TEST(Routing, LoadsAreRelativeToTheMeanOfTheirLayer) {
  const Routing routing({{}, {10, 30, 0, 40}, {}, {1, 1, 1, 5}}, "by hand");
  EXPECT_DOUBLE_EQ(routing.Load(1, {0, 1}), 0.5);
  EXPECT_DOUBLE_EQ(routing.Load(1, {1, 2}), 1.5);
  EXPECT_DOUBLE_EQ(routing.Load(1, {0, 2}), 1);
  EXPECT_DOUBLE_EQ(routing.Load(3, {2, 4}), 1.5);
  EXPECT_DOUBLE_EQ(routing.Load(3, {0, 4}), 1);
  EXPECT_THAT(routing.LargestLoads(1), ElementsAre(2, 2.5));
  EXPECT_THAT(routing.LargestLoads(2), ElementsAre(1, 1.5));
  EXPECT_DOUBLE_EQ(routing.OfTheFullestRank().Load(7, {0, 2}), 1.25);
}

Deck::Model ModelOf(const std::vector<std::string>& overrides) { return SmallDeck(overrides).model; }

TEST(Routing, SkewFollowsZipf) {
  const Deck::Model model =
      ModelOf({"experts.count=6", "experts.per_token=1", "experts.ffn_dim=8", "experts.first_layer=1"});
  const Routing routing = SkewedRouting(model, 1, 5);
  const double mean = (1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4 + 1.0 / 5 + 1.0 / 6) / 6;
  std::vector<double> loads;
  for (int64_t e = 0; e < 6; ++e) loads.push_back(routing.Load(2, {e, e + 1}));
  std::ranges::sort(loads, std::greater());
  for (size_t i = 0; i < loads.size(); ++i) EXPECT_NEAR(loads[i], 1 / double(i + 1) / mean, 1e-12);
  // The first layer is dense.
  EXPECT_EQ(routing.LargestLoads(1).size(), static_cast<size_t>(model.layers - 1));
  EXPECT_THAT(SkewedRouting(model, 0, 5).LargestLoads(2), testing::Each(DoubleNear(1, 1e-12)));
}

TEST(Routing, NoExpertHasMoreThanAllTokens) {
  // With 3 of 4 experts per token none has more than 4/3 of the mean, however skewed.
  const Routing routing = SkewedRouting(ModelOf({"experts.count=4", "experts.per_token=3", "experts.ffn_dim=8"}), 2, 5);
  double sum = 0;
  for (int64_t e = 0; e < 4; ++e) {
    EXPECT_LE(routing.Load(1, {e, e + 1}), 4.0 / 3 + 1e-12);
    sum += routing.Load(1, {e, e + 1});
  }
  EXPECT_NEAR(sum, 4, 1e-12);
  EXPECT_NEAR(routing.LargestLoads(1).at(0), 4.0 / 3, 1e-12);
}

/// Time of the kernels of one kind on a rank of two that share four experts of one layer.
class Layer {
 public:
  explicit Layer(const std::string& buffer)
      : compiled_(Compile(SmallDeck({"model.layers=1", "experts.count=4", "experts.per_token=2", "experts.ffn_dim=8",
                                     "parallel.dp_shard=2", "parallel.ep=2", "experts.buffer=" + buffer}),
                          2, Purpose::kTrain)) {}

  double Us(OpKind kind, int rank, const Routing& routing) const {
    Cluster cluster = LoadCluster(InTree("inputs/clusters/h100-8x400g.toml"));
    cluster.compute.launch_us = cluster.compute.kernel_us = 0;  // kernels without rows take no time
    const Coordinate coordinate = compiled_.mesh.CoordinateOf(rank);
    const Program program = MakeProgram(compiled_, coordinate);
    const std::vector<InstructionCost> costs = CostInstructions(Costs(cluster, routing), program, coordinate);
    double us = 0;
    for (size_t i = 0; i < costs.size(); ++i)
      if (program.graph->op(program.instructions[i].op).kind == kind) us += costs[i].us;
    return us;
  }

 private:
  Compilation compiled_;
};

TEST(Routing, KernelsTakeTimeInProportionToTheRowsOfTheRank) {
  // A load of 1.5 and 0.5; the pool of one pass holds 1.5 or 0.5 times the balanced rows.
  const Routing uneven({{}, {5, 1, 1, 1}}, "by hand");
  for (const double buffer : {1.5, 0.5, 0.75}) {
    const Layer layer(fmt::format("{}", buffer));
    // Rows in further passes are computed again in backward; those of gradients are there once.
    const auto work = [&](double load) { return std::min(load, buffer) + 2 * std::max(load - buffer, 0.0); };
    for (const OpKind kind : {OpKind::kWeightedSwiglu, OpKind::kDispatch, OpKind::kCombineGrad}) {
      const auto ratio = [&](double load) { return kind == OpKind::kCombineGrad ? load : work(load) / work(1); };
      const double balanced = layer.Us(kind, 0, {});
      EXPECT_NEAR(layer.Us(kind, 0, uneven) / balanced, ratio(1.5), 0.02) << buffer << " " << Name(kind);
      EXPECT_NEAR(layer.Us(kind, 1, uneven) / balanced, ratio(0.5), 0.02) << buffer << " " << Name(kind);
    }
    for (const OpKind kind : {OpKind::kAttention, OpKind::kRoute})
      EXPECT_EQ(layer.Us(kind, 0, uneven), layer.Us(kind, 0, {})) << Name(kind);
  }
}

TEST(Routing, ExchangesWaitForTheRankWithMostRows) {
  const Compilation c = Compile(SmallDeck({"model.layers=2", "experts.count=4", "experts.per_token=2",
                                           "experts.ffn_dim=8", "parallel.dp_shard=2", "parallel.ep=2"}),
                                2, Purpose::kTrain);
  Cluster cluster = LoadCluster(InTree("inputs/clusters/h100-8x400g.toml"));
  cluster.exchange_tokens = true;
  cluster.node.base_us = cluster.node.hop_us = 0;
  cluster.node.share.clear();
  const Program program = MakeProgram(c, {});
  const auto of_layers = [&](const Routing& routing) {
    std::map<int, double> us;
    const std::vector<InstructionCost> costs = CostInstructions(Costs(cluster, routing), program, {});
    for (size_t i = 0; i < costs.size(); ++i)
      if (const Op& op = program.graph->op(program.instructions[i].op); IsExpertTransfer(*program.graph, op))
        us[op.layer] += costs[i].us;
    return us;
  };
  // A token has two experts. A rank with half of the rows has at least one of them for 3/4 of the tokens, a rank with
  // 3/4 of the rows for 15/16, and one with all rows for all tokens.
  std::map<int, double> balanced = of_layers({}),
                        uneven = of_layers(Routing({{}, {5, 1, 1, 1}, {1, 1, 0, 0}}, "by hand"));
  ASSERT_GT(balanced[1], 0);
  EXPECT_NEAR(uneven[1] / balanced[1], (15.0 / 16) / (3.0 / 4), 1e-2);
  EXPECT_NEAR(uneven[2] / balanced[2], 1 / (3.0 / 4), 1e-2);
}

}  // namespace
}  // namespace espalier
