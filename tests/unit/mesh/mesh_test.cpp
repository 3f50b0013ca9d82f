#include "espalier/mesh/mesh.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  const Mesh mesh({2, 3, 2, 1, 5});
  EXPECT_EQ(mesh.Ranks(), 60);
  for (int rank = 0; rank < 60; ++rank) EXPECT_EQ(mesh.RankOf(mesh.CoordinateOf(rank)), rank);
  EXPECT_EQ(mesh.CoordinateOf(1), (Coordinate{0, 0, 0, 0, 1})) << "tp varies fastest";
  EXPECT_EQ(mesh.CoordinateOf(30), (Coordinate{1, 0, 0, 0, 0})) << "pp is outermost";
}

TEST(Mesh, GroupsDifferOnlyInTheirAxes) {
  const Mesh mesh({2, 3, 2, 1, 5});
  const Coordinate c = mesh.CoordinateOf(37);
  EXPECT_EQ(mesh.GroupRanks({Axis::kTp}, c), (std::vector<int>{35, 36, 37, 38, 39}));
  EXPECT_EQ(mesh.GroupRanks({Axis::kPp}, c), (std::vector<int>{7, 37}));
  EXPECT_EQ(mesh.GroupRanks({Axis::kDpReplicate, Axis::kDpShard}, c), (std::vector<int>{32, 37, 42, 47, 52, 57}));
  for (int rank : mesh.GroupRanks({Axis::kDpShard, Axis::kTp}, c)) {
    const int index = mesh.IndexInGroup({Axis::kDpShard, Axis::kTp}, mesh.CoordinateOf(rank));
    EXPECT_EQ(mesh.GroupMember({Axis::kDpShard, Axis::kTp}, c, index), mesh.CoordinateOf(rank));
  }
  EXPECT_EQ(mesh.GroupRanks({}, c), (std::vector<int>{37}));
}

TEST(Mesh, RanksOfARegatherGroupAreNeighbours) {
  EnumArray<Axis, int, kAxisCount> degrees = {1, 1, 3, 1, 2};
  degrees[Axis::kRegather] = 4;
  const Mesh mesh(degrees);
  for (int rank = 0; rank < 24; ++rank) {
    const Coordinate c = mesh.CoordinateOf(rank);
    EXPECT_EQ(mesh.RankOf(c), rank);
    EXPECT_EQ(c[Axis::kDpShard], rank / 8) << "8 ranks with tp on a node";
    EXPECT_EQ(mesh.IndexInGroup(kShardAxes, c), rank / 2 % 4 * 3 + rank / 8) << "shards go by regather first";
  }
  EXPECT_EQ(mesh.GroupRanks({Axis::kRegather}, mesh.CoordinateOf(11)), (std::vector<int>{9, 11, 13, 15}));
  EXPECT_EQ(mesh.GroupRanks({Axis::kDpShard}, mesh.CoordinateOf(11)), (std::vector<int>{3, 11, 19}));
  EXPECT_EQ(mesh.ToString(), "pp 1 x dp_replicate 1 x dp_shard 12 x cp 1 x tp 2");
}

TEST(Mesh, AxesOfDegreeOneAreNotReal) {
  const Mesh mesh({2, 1, 2, 1, 1});
  EXPECT_EQ(mesh.Real({Axis::kPp, Axis::kDpReplicate, Axis::kTp}), (AxisSet{Axis::kPp}));
  EXPECT_EQ(Name(AxisSet{Axis::kTp, Axis::kDpShard}), "dp_shard+tp");
}

}  // namespace
}  // namespace espalier
