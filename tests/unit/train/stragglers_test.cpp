// Ranks that are slower than their peers are named once they have been for long.
#include "train/stragglers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_testing.hpp"

namespace espalier {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::StrEq;

std::vector<int> RanksOf(const std::vector<Straggler>& found) {
  std::vector<int> ranks;
  for (const Straggler& one : found) ranks.push_back(one.rank);
  return ranks;
}

TEST(Stragglers, AreSlowerThanTheMedianOfTheirPeers) {
  const Mesh mesh(Degrees{1, 4, 1, 1, 1});
  EXPECT_THAT(FindStragglers({10, 10, 12.1, 10}, mesh), ElementsAre(Straggler{2, 12.1, 10, ""}));
  EXPECT_THAT(FindStragglers({10, 10, 11.9, 10}, mesh), IsEmpty()) << "within a fifth";
  EXPECT_THAT(FindStragglers({10, 5, 10, 10}, mesh), IsEmpty()) << "a fast rank makes no other slow";
  EXPECT_THAT(RanksOf(FindStragglers({20, 10, 20, 10}, mesh)), ElementsAre(0, 2));
}

TEST(Stragglers, StagesHaveDifferentWork) {
  const Mesh mesh(Degrees{2, 2, 1, 1, 1});
  EXPECT_THAT(FindStragglers({10, 10, 30, 30}, mesh), IsEmpty());
  EXPECT_THAT(RanksOf(FindStragglers({10, 10, 30, 40}, mesh)), ElementsAre(3));
  EXPECT_THAT(FindStragglers({10, 90}, Mesh(Degrees{2, 1, 1, 1, 1})), IsEmpty()) << "no peers";
}

TEST(Stragglers, AreNamedOnceUntilTheyRecover) {
  const Mesh mesh(Degrees{1, 3, 1, 1, 1});
  std::vector<int64_t> named;  // steps at which rank 1 was named
  const auto errors = OnRanks(3, [&](World& world) {
    Stragglers stragglers(mesh, world);
    // Slow for two windows, fast for one, slow for six.
    for (int64_t step = 1; step <= 9 * Stragglers::kWindow; ++step) {
      const int64_t window = (step - 1) / Stragglers::kWindow;
      const double ms = world.Rank() == 1 && window != 2 ? 15 : 10;
      for (const Straggler& found : stragglers.After(ms)) {
        EXPECT_EQ(world.Rank(), 0);
        EXPECT_EQ(found.rank, 1);
        EXPECT_EQ(found.ms, 15);
        EXPECT_EQ(found.peers_ms, 10);
        EXPECT_FALSE(found.host.empty());
        named.push_back(step);
      }
    }
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  EXPECT_THAT(named, ElementsAre(6 * Stragglers::kWindow));
}

}  // namespace
}  // namespace espalier
