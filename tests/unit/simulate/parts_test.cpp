// A step by what its kernels and transfers are for.
#include "simulate/simulate_testing.hpp"

namespace espalier {
namespace {

/// The parts of rank 0 if each kernel takes 1 us and each transfer 0.5 us.
ByStepPart<PartTimes> PartsOf(const std::vector<std::string>& overrides, int ranks) {
  const CompiledWorld world(overrides, ranks);
  const auto costs = CostsBy(
      world, [](const Program&, const Instruction& i) { return IsKernel(i) ? 1.0 : 0.5; },
      [](const Program&, const Instruction& i) { return IsKernel(i) ? Port::kNone : Port::kNode; });
  Cluster cluster;
  cluster.ranks_per_node = 8;
  return Simulate(world.Programs(), costs, cluster).classes[0].parts;
}

TEST(Parts, ADenseModelHasNoExperts) {
  const auto parts = PartsOf({"parallel.dp_shard=2"}, 2);
  for (const StepPart part : {StepPart::kForward, StepPart::kBackward, StepPart::kUpdate})
    EXPECT_GT(parts[part].kernels_us, 0) << Name(part);
  for (const StepPart part : {StepPart::kDispatch, StepPart::kCombine, StepPart::kRecompute})
    EXPECT_EQ(parts[part], PartTimes{}) << Name(part);
}

TEST(Parts, RecomputationIsAPartOfItsOwn) {
  const auto kept = PartsOf({}, 1), again = PartsOf({"recompute.mode=full"}, 1);
  EXPECT_GT(again[StepPart::kRecompute].kernels_us, 0);
  EXPECT_LE(again[StepPart::kRecompute].kernels_us, again[StepPart::kForward].kernels_us);
  for (const StepPart part : {StepPart::kForward, StepPart::kBackward, StepPart::kUpdate})
    EXPECT_EQ(kept[part].kernels_us, again[part].kernels_us) << Name(part);
}

TEST(Parts, ExpertsDispatchAndCombineInBothDirections) {
  constexpr int kLayers = 3, kMicrobatches = 2;
  const std::vector<std::string> deck = {fmt::format("model.layers={}", kLayers), "experts.count=4",
                                         "experts.per_token=2", "experts.ffn_dim=8", "parallel.dp_shard=2",
                                         "experts.buffer=2",
                                         // Four sequences, two ranks.
                                         "batch.global=4", "batch.micro=1"};
  const auto alone = PartsOf(deck, 2);
  for (const StepPart part : {StepPart::kDispatch, StepPart::kCombine})
    EXPECT_EQ(alone[part], (PartTimes{2.0 * kLayers * kMicrobatches, 0, 0})) << Name(part);
  std::vector<std::string> shared = deck;
  shared.push_back("parallel.ep=2");
  const auto parts = PartsOf(shared, 2);
  for (const StepPart part : {StepPart::kDispatch, StepPart::kCombine}) {
    EXPECT_EQ(parts[part].kernels_us, 2.0 * kLayers * kMicrobatches) << Name(part);
    // A gather or a sum in forward and one in backward, of each layer at least.
    EXPECT_GE(parts[part].exposed_us + parts[part].hidden_us, 0.5 * 2 * kLayers * kMicrobatches) << Name(part);
  }
}

}  // namespace
}  // namespace espalier
