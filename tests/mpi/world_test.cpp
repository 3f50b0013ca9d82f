// Communication outside the step.
#include "harness.hpp"

namespace espalier::test {
namespace {

/// Bytes that differ on every rank, and are longer than an eager message on the higher ones.
std::string BytesOf(int rank) {
  return std::string(static_cast<size_t>(rank) * 40'003, static_cast<char>('a' + rank)) + '\0' + "end";
}

TEST(World, GathersBytesInOrderOfRanks) {
  World& world = TheWorld();
  const std::vector<std::string> all = world.Gather(BytesOf(world.Rank()));
  if (world.Rank() != 0) {
    EXPECT_TRUE(all.empty());
    return;
  }
  ASSERT_EQ(static_cast<int>(all.size()), world.Size());
  for (int rank = 0; rank < world.Size(); ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)], BytesOf(rank)) << rank;
}

TEST(World, BroadcastsRankZerosBytes) {
  World& world = TheWorld();
  EXPECT_EQ(world.Broadcast(BytesOf(world.Rank() == 0 ? 3 : world.Rank())), BytesOf(3));
  EXPECT_EQ(world.Broadcast(world.Rank() == 0 ? "" : "other"), "");
}

TEST(World, LargestOfAll) {
  World& world = TheWorld();
  const int64_t huge = int64_t{1} << 60;
  EXPECT_EQ(world.Max(huge - world.Rank()), huge);
  EXPECT_EQ(world.Max(-world.Rank()), 0);
}

TEST(World, BitsOfAll) {
  World& world = TheWorld();
  const int size = world.Size();
  EXPECT_EQ(world.Or(uint64_t{1} << world.Rank()), (uint64_t{1} << size) - 1);
  EXPECT_EQ(world.Or(0), 0u);
}

/// Every rank sends two messages to each other rank, whose sizes differ and are beyond one round.
TEST(World, ExchangesMessagesOfAnySize) {
  World& world = TheWorld();
  const int size = world.Size(), mine = world.Rank();
  const auto bytes = [](int from, int to, int which) {
    return which == 0 ? int64_t{1 + from + 10 * to} : (int64_t{4} << 20) * (1 + to) + 17 * from;
  };
  const auto at = [](int from, int to, int64_t i) { return static_cast<std::byte>(31 * from + 7 * to + i % 251); };
  std::vector<std::vector<std::byte>> memory;
  std::vector<Parcel> sends, receives;
  for (int other = 0; other < size; ++other)
    for (int which = 0; which < 2 && other != mine; ++which) {
      std::vector<std::byte>& out = memory.emplace_back(static_cast<size_t>(bytes(mine, other, which)));
      for (size_t i = 0; i < out.size(); ++i) out[i] = at(mine, other, static_cast<int64_t>(i));
      sends.push_back({other, out.data(), std::ssize(out)});
      std::vector<std::byte>& in = memory.emplace_back(static_cast<size_t>(bytes(other, mine, which)));
      receives.push_back({other, in.data(), std::ssize(in)});
    }
  world.Exchange(sends, receives);
  for (const Parcel& parcel : receives)
    for (int64_t i = 0; i < parcel.bytes; ++i) ASSERT_EQ(parcel.data[i], at(parcel.rank, mine, i)) << parcel.rank << i;
}

TEST(World, BarrierWaitsForTheLast) {
  World& world = TheWorld();
  const std::unique_ptr<World> other = TheWorld().Duplicate();
  for (int i = 0; i < 50; ++i) {
    world.Barrier();
    other->Barrier();
  }
  EXPECT_EQ(other->Rank(), world.Rank());
  EXPECT_EQ(other->Size(), world.Size());
}

TEST(World, KnowsItsNode) {
  MpiWorld& world = TheWorld();
  EXPECT_TRUE(StartedByLauncher());
  EXPECT_EQ(world.NodeRanks(), world.Size());
  EXPECT_EQ(world.NodeRank(), world.Rank());
}

TEST(World, RanksAgreeOnChannels) {
  World& world = TheWorld();
  std::vector<Channel> mine = {{AxisSet{Axis::kTp}, Lane::kTp, Route::kGroup}};
  if (world.Rank() == 1) mine.push_back({AxisSet{Axis::kDpReplicate, Axis::kDpShard}, Lane::kDp, Route::kGroup});
  if (world.Rank() == 0) mine.push_back({AxisSet{Axis::kPp}, Lane::kPpSend, Route::kDown});
  const std::vector<Channel> all = AgreeOnChannels(world, mine);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(Name(all[0].axes), "pp");
  EXPECT_EQ(all[0].route, Route::kDown);
  EXPECT_EQ(Name(all[1].axes), "dp_replicate+dp_shard");
  EXPECT_EQ(all[1].lane, Lane::kDp);
  EXPECT_EQ(all[2], mine[0]);
}

}  // namespace
}  // namespace espalier::test
