#include "espalier/mesh/mesh.hpp"

#include <gtest/gtest.h>

#include "espalier/util/error.hpp"

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

TEST(Mesh, RanksThatShareExpertsAreNeighbours) {
  EnumArray<Axis, int, kAxisCount> degrees = {1, 1, 3, 1, 2};
  degrees[Axis::kEp] = 4;
  const Mesh mesh(degrees);
  for (int rank = 0; rank < 24; ++rank) {
    const Coordinate c = mesh.CoordinateOf(rank);
    EXPECT_EQ(c[Axis::kEp], rank / 2 % 4);
    EXPECT_EQ(mesh.IndexInGroup(kShardAxes, c), rank / 2 % 4 * 3 + rank / 8) << "shards go by ep first";
  }
  EXPECT_EQ(mesh.GroupRanks({Axis::kEp, Axis::kTp}, mesh.CoordinateOf(11)),
            (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(mesh.ToString(), "pp 1 x dp_replicate 1 x dp_shard 12 x cp 1 x tp 2");
}

TEST(Axes, EveryAxisHasOneRowAndOnePlace) {
  AxisSet members, ranks;
  for (Axis a : kAxes) members.Add(a);
  for (Axis a : kAxesOfRanks) ranks.Add(a);
  EXPECT_EQ(std::ssize(members.List()), kAxisCount);
  EXPECT_EQ(members, ranks);
  for (const AxisRow& row : kAxisTable) {
    EXPECT_EQ(&RowOf(row.axis), &row);
    EXPECT_EQ(RowOf(row.whole).whole, row.whole) << row.name << " is a factor of an axis of the deck";
    EXPECT_TRUE(FactorsOf(row.whole).Has(row.axis));
    EXPECT_FALSE(FactorsInside(row.axis).Has(row.axis));
  }
}

TEST(Axes, SetsFollowFromTheTable) {
  EXPECT_EQ(Name(kTensorAxes), "tp+kv_replicate");
  EXPECT_EQ(Name(kShardAxes), "ep+regather+dp_shard");
  EXPECT_EQ(Name(kBatchAxes), "dp_replicate+ep+regather+dp_shard");
  EXPECT_EQ(Name(kTokenAxes), "dp_replicate+ep+regather+dp_shard+cp");
  EXPECT_EQ(Name(kStateAxes), "ep+regather+dp_shard+cp");
  EXPECT_EQ(Name(kAxesOfStage), "dp_replicate+ep+regather+dp_shard+cp+tp+kv_replicate");
  EXPECT_EQ(Name(kReplicatingAxes), "kv_replicate");
  EXPECT_EQ(FactorsInside(Axis::kRegather), AxisSet{Axis::kDpShard});
  EXPECT_EQ(FactorsInside(Axis::kDpShard), AxisSet{});
}

TEST(Axes, EachKindOfMessageHasItsCarrier) {
  EXPECT_EQ(CarrierOf(kTensorAxes, &AxisRow::activations), CommAxis::kTp);
  EXPECT_EQ(CarrierOf({Axis::kTp}, &AxisRow::others), CommAxis::kTp);
  EXPECT_EQ(CarrierOf({Axis::kCp}, &AxisRow::activations), CommAxis::kCp);
  EXPECT_EQ(CarrierOf({Axis::kCp}, &AxisRow::others), CommAxis::kDp) << "gradients never hold up keys and values";
  EXPECT_EQ(CarrierOf({Axis::kCp, Axis::kTp}, &AxisRow::activations), CommAxis::kEp) << "tokens of shared experts";
  EXPECT_EQ(CarrierOf({Axis::kPp}, &AxisRow::others), CommAxis::kDp);
  EXPECT_EQ(CarrierOf({Axis::kEp}, &AxisRow::activations), CommAxis::kEp);
  EXPECT_EQ(CarrierOf({Axis::kEp, Axis::kTp}, &AxisRow::activations), CommAxis::kEp) << "one group of experts";
  EXPECT_EQ(CarrierOf({Axis::kEp, Axis::kDpShard}, &AxisRow::others), CommAxis::kDp);
}

TEST(Axes, SetsAreReadAsTheyPrint) {
  for (uint32_t bits = 0; bits < 1u << kAxisCount; ++bits) {
    const AxisSet axes = AxisSet::FromBits(bits);
    EXPECT_EQ(ParseAxisSet(Name(axes)), axes);
  }
  EXPECT_THROW(ParseAxisSet("tp+xp"), InvariantError);
}

TEST(Mesh, AxesOfDegreeOneAreNotReal) {
  const Mesh mesh({2, 1, 2, 1, 1});
  EXPECT_EQ(mesh.Real({Axis::kPp, Axis::kDpReplicate, Axis::kTp}), (AxisSet{Axis::kPp}));
  EXPECT_EQ(Name(AxisSet{Axis::kTp, Axis::kDpShard}), "dp_shard+tp");
}

}  // namespace
}  // namespace espalier
