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

/// Times in ms of messages over one axis, by rank.
std::vector<ByCommAxis<double>> Over(CommAxis axis, const std::vector<double>& ms) {
  std::vector<ByCommAxis<double>> of_ranks(ms.size());
  for (size_t rank = 0; rank < ms.size(); ++rank) of_ranks[rank][axis] = ms[rank];
  return of_ranks;
}

TEST(SlowLinks, AGroupTakesAsLongAsItsShortestRank) {
  const Mesh mesh(Degrees{1, 3, 1, 1, 2});  // tp groups 0 1, 2 3, 4 5
  const auto found = [&](const std::vector<double>& ms) { return FindSlowLinks(Over(CommAxis::kTp, ms), mesh, 20); };
  EXPECT_THAT(found({3, 3, 9, 8, 3, 3}), ElementsAre(SlowLink{CommAxis::kTp, {2, 3}, 8, 3, {}}));
  EXPECT_THAT(found({3, 3, 9, 3, 3, 3}), IsEmpty()) << "rank 2 waits for rank 3, which computes longer";
  EXPECT_THAT(found({3, 3, 4.4, 4.4, 3, 3}), IsEmpty()) << "within a half";
  EXPECT_THAT(found({0.1, 0.1, 0.9, 0.9, 0.1, 0.1}), IsEmpty()) << "less than a twentieth of the step";
}

TEST(SlowLinks, ArePeersWithinAStageAndPipelinesAreOfAll) {
  const Mesh mesh(Degrees{2, 2, 1, 1, 2});  // stages 0 1 2 3 and 4 5 6 7
  EXPECT_THAT(FindSlowLinks(Over(CommAxis::kTp, {2, 2, 2, 2, 9, 9, 9, 9}), mesh, 20), IsEmpty()) << "stages differ";
  EXPECT_THAT(FindSlowLinks(Over(CommAxis::kPp, {2, 9, 2, 2, 2, 9, 2, 2}), mesh, 20),
              ElementsAre(SlowLink{CommAxis::kPp, {1, 5}, 9, 2, {}}));
  EXPECT_THAT(FindSlowLinks(Over(CommAxis::kDp, {9, 2, 9, 2, 2, 2, 2, 2}), mesh, 20),
              ElementsAre(SlowLink{CommAxis::kDp, {0, 2}, 9, 2, {}}));
  EXPECT_THAT(FindSlowLinks(Over(CommAxis::kDp, {9, 9}), Mesh(Degrees{1, 2, 1, 1, 1}), 20), IsEmpty()) << "no peers";
}

TEST(SlowLinks, AreNamedOnce) {
  const Mesh mesh(Degrees{1, 2, 1, 1, 2});
  std::vector<SlowLink> named;
  const auto errors = OnRanks(4, [&](World& world) {
    Stragglers stragglers(mesh, world);
    CommTimes comm;
    comm.exposed_ms[CommAxis::kTp] = world.Rank() < 2 ? 1 : 5;
    comm.hidden_ms[CommAxis::kTp] = 1;
    for (int64_t step = 1; step <= 9 * Stragglers::kWindow; ++step)
      for (SlowLink& found : stragglers.After(20, 10, comm).links) {
        EXPECT_EQ(step, Stragglers::kPatience * Stragglers::kWindow);
        EXPECT_EQ(found.hosts.size(), 1u);
        found.hosts.clear();
        named.push_back(found);
      }
  });
  EXPECT_THAT(errors, Each(StrEq("")));
  EXPECT_THAT(named, ElementsAre(SlowLink{CommAxis::kTp, {2, 3}, 6, 2, {}}));
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
      for (const Straggler& found : stragglers.After(20, ms, std::nullopt).ranks) {
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
