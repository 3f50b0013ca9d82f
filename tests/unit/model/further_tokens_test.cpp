// Layers for further tokens: their losses, and which programs have them. tests/oracle compares them with PyTorch.
#include "espalier/model/further_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "espalier/model/flops.hpp"
#include "one_rank.hpp"

namespace espalier {
namespace {

// With a head of zeros every logit is 0, so each target costs log(vocab), at any depth. What is differentiated does not
// count in the reported losses.
TEST(FurtherTokens, EachDepthHasTheLossOfItsOwnTargets) {
  for (const double weight : {0.0, 7.5}) {
    Deck deck = SmallDeck({"model.mtp_layers=2", "model.layers=1", "batch.global=2", "batch.micro=1"});
    deck.loss.mtp_weight = weight;
    OneRank run(deck, FindCpuKernel);
    const Tensor head = run.executor().At("parameters/lm_head.weight");
    std::fill_n(head.As<float>(), Volume(head.shape), 0.0f);
    const int64_t length = deck.model.seq_len;
    const int missing[] = {1, 3, 4};  // targets of each depth that do not count, per microbatch
    for (int k = 0; k < 2; ++k) {
      std::vector<int32_t> ids, targets;
      for (int32_t p = 0; p < length; ++p) ids.push_back((7 * p + k) % 11), targets.push_back((5 * p + 3) % 11);
      for (int depth = 0; depth <= 2; ++depth) {
        std::vector<int32_t> counted = targets;
        std::fill_n(counted.end() - missing[depth], missing[depth], -1);
        run.Fill(depth == 0 ? "targets" : TargetsOfDepth(depth), k, counted);
        run.Fill(depth == 0 ? "ids" : IdsOfDepth(depth), k, ids);
      }
    }
    run.Step(1, 0.0);
    const double each = std::log(double(deck.model.vocab));
    EXPECT_NEAR(run.executor().GetScalar("mean_loss"), each, 1e-6);
    for (int depth = 1; depth <= 2; ++depth) {
      const double count = 2.0 * double(length - missing[depth]);
      EXPECT_EQ(run.executor().GetScalar(CountOfDepth(depth)), count);
      EXPECT_NEAR(run.executor().GetScalar(LossOfDepth(depth)), count * each, 1e-6 * count * each);
      EXPECT_NEAR(run.executor().GetScalar(MeanLossOfDepth(depth)), each, 1e-6);
    }
  }
}

// Programs that evaluate have no op of these layers, but the places of their weights.
TEST(FurtherTokens, EvaluationLeavesThemOut) {
  const Deck plain = SmallDeck({"model.layers=2"}), deck = SmallDeck({"model.layers=2", "model.mtp_layers=2"});
  for (const Purpose purpose : {Purpose::kEvaluate, Purpose::kProof, Purpose::kScore}) {
    const Model without = BuildModel(plain, SplitLayers(plain, 1), 1, purpose),
                with = BuildModel(deck, SplitLayers(deck, 1), 1, purpose),
                trained = BuildModel(deck, SplitLayers(deck, 1), 1, Purpose::kTrain);
    const auto forward = [](const Model& model) { return std::ranges::count(model.graph.ops, Role::kF, &Op::role); };
    EXPECT_EQ(forward(with), forward(without));
    EXPECT_LT(forward(with), forward(trained));
    EXPECT_EQ(with.parameters, purpose == Purpose::kScore ? without.parameters : trained.parameters);
    EXPECT_EQ(with.graph.FindOrNone(IdsOfDepth(1)), -1);
  }
}

TEST(FurtherTokens, CountInFlopsAndParameters) {
  const Deck plain = SmallDeck({}), deck = SmallDeck({"model.mtp_layers=2"});
  const auto count = [](const Deck& d) { return ParameterCount(BuildModel(d, SplitLayers(d, 1), 1, Purpose::kTrain)); };
  const Deck one = SmallDeck({fmt::format("model.layers={}", plain.model.layers + 1)});
  const int64_t dim = plain.model.dim, layer = count(one) - count(plain);
  EXPECT_EQ(count(deck), count(plain) + 2 * (layer + 2 * dim * dim + 3 * dim));
  const double flops = FlopsPerToken(one).causal - FlopsPerToken(plain).causal,
               head = 6 * double(dim) * double(plain.model.vocab);
  EXPECT_NEAR(FlopsPerToken(deck).causal,
              FlopsPerToken(plain).causal + 2 * (flops + head + 12 * double(dim) * double(dim)), 1e-3);
}

}  // namespace
}  // namespace espalier
