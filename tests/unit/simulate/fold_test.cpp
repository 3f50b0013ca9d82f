// Ranks that must have the same times are simulated once; nothing else changes, not a bit.
#include <gtest/gtest.h>

#include "espalier/util/philox.hpp"
#include "simulate/simulate_testing.hpp"

namespace espalier {
namespace {

void ExpectSame(const Simulation& folded, const Simulation& all) {
  EXPECT_EQ(folded.step_us, all.step_us);
  ASSERT_EQ(folded.class_of_rank.size(), all.class_of_rank.size());
  for (size_t rank = 0; rank < all.class_of_rank.size(); ++rank) {
    const RankTimes& a = folded.classes[static_cast<size_t>(folded.class_of_rank[rank])];
    const RankTimes& b = all.classes[static_cast<size_t>(all.class_of_rank[rank])];
    EXPECT_EQ(a.end_us, b.end_us) << "rank " << rank;
    EXPECT_EQ(a.stage, b.stage);
    EXPECT_EQ(a.breakdown.compute_us, b.breakdown.compute_us) << "rank " << rank;
    EXPECT_EQ(a.breakdown.idle_us, b.breakdown.idle_us) << "rank " << rank;
    for (CommAxis axis : kCommAxes) {
      EXPECT_EQ(a.breakdown.exposed_us[axis], b.breakdown.exposed_us[axis]) << "rank " << rank;
      EXPECT_EQ(a.breakdown.hidden_us[axis], b.breakdown.hidden_us[axis]) << "rank " << rank;
    }
  }
}

TEST(Fold, ChangesNoBitOfAnyLayout) {
  for (const Case& layout : AllCases()) {
    const CompiledWorld world(layout.overrides, layout.ranks);
    SimulateOptions options;
    const Simulation folded = Simulate(world.Programs(), RandomCosts(world, 7), SlowingCluster(), options);
    options.fold = false;
    const Simulation all = Simulate(world.Programs(), RandomCosts(world, 7), SlowingCluster(), options);
    EXPECT_EQ(std::ssize(all.classes), layout.ranks);
    EXPECT_LE(folded.classes.size(), all.classes.size());
    ExpectSame(folded, all);
    if (HasFailure()) FAIL() << testing::PrintToString(layout);
  }
}

}  // namespace
}  // namespace espalier
