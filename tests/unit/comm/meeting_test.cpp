// The messages of instructions that only synchronize their members. tests/mpi/meeting_test.cpp tests who waits for whom
// over MPI.
#include "comm/mpi/meeting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;
using TimePoint = std::chrono::steady_clock::time_point;

Exchange ExchangeOf(Route route, std::vector<Phase> phases) {
  return {{AxisSet{Axis::kTp}, Lane::kTp, route}, std::move(phases)};
}

std::vector<int> PeersOf(const std::vector<MeetingPeer>& all) {
  std::vector<int> peers;
  for (const MeetingPeer& peer : all) peers.push_back(peer.peer);
  return peers;
}

TEST(Meeting, IsWithEveryMemberOfAGroup) {
  // A ring shift sends to one member and receives from another.
  Phase ring;
  ring.sends.push_back({2, nullptr, 100});
  ring.receives.push_back({0, nullptr, 50});
  const auto peers = MeetingPeersOf(ExchangeOf(Route::kGroup, {ring}), 4, 1);
  EXPECT_THAT(PeersOf(peers), ElementsAre(0, 2, 3));
  EXPECT_EQ(peers[0].receives, 50);
  EXPECT_EQ(peers[1].sends, 100);
  EXPECT_EQ(peers[2].sends + peers[2].receives, 0);
}

TEST(Meeting, OfASendIsWithItsPeer) {
  Phase send;
  send.sends.push_back({3, nullptr, 8});
  EXPECT_THAT(PeersOf(MeetingPeersOf(ExchangeOf(Route::kUp, {send}), 4, 1)), ElementsAre(3));
}

TEST(Meeting, CountsTheBytesOfAllPhases) {
  Phase first, second;
  first.sends.push_back({1, nullptr, 8});
  second.sends.push_back({1, nullptr, 16});
  second.receives.push_back({1, nullptr, 4});
  const auto peers = MeetingPeersOf(ExchangeOf(Route::kGroup, {first, second}), 2, 0);
  ASSERT_EQ(peers.size(), 1u);
  EXPECT_EQ(peers[0].sends, 24);
  EXPECT_EQ(peers[0].receives, 4);
}

TEST(Meeting, OfAGroupOfOneHasNoMessages) {
  EXPECT_TRUE(MeetingPeersOf(ExchangeOf(Route::kGroup, {Phase{}}), 1, 0).empty());
}

/// Member 0 of two, with the memory of its messages; it sends 5000 bytes and receives 7.
struct Member {
  explicit Member(int64_t sends = 5000, int64_t receives = 7)
      : memory(static_cast<size_t>(MeetingMessages::BytesFor(1))), messages({{1, sends, receives}}, memory) {}

  std::vector<std::byte> memory;
  MeetingMessages messages;
};

/// Copies the bytes that `from` sends to `to`.
void Carry(const Member& from, const Member& to) {
  const Message sent = from.messages.ToPhase().sends.at(0), received = to.messages.ToPhase().receives.at(0);
  ASSERT_LE(sent.bytes, kMeetingBytes + 64);
  std::memcpy(received.data, sent.data, static_cast<size_t>(sent.bytes));
}

TEST(Meeting, EndsWithTheLastArrivalAndTheLongestTime) {
  const Member here(5000, 7), there(7, 5000);
  const Arrival early{TimePoint(microseconds(10)), microseconds(3)}, late{TimePoint(microseconds(25)), microseconds(2)};
  here.messages.Write(early);
  there.messages.Write(late);
  Carry(here, there);
  Carry(there, here);
  for (const Arrival& last : {here.messages.Last(early), there.messages.Last(late)}) {
    EXPECT_EQ(last.at, late.at);
    EXPECT_EQ(last.takes, early.takes);
  }
}

TEST(Meeting, CarriesAtMostOneKibibyte) {
  const Phase phase = Member(5000, 7).messages.ToPhase();
  EXPECT_EQ(phase.sends.at(0).bytes - phase.receives.at(0).bytes, kMeetingBytes - 7);
}

TEST(Meeting, MembersMustAgreeOnTheBytes) {
  const Member here(5000, 7), there(8, 5000);
  there.messages.Write({});
  Carry(there, here);
  EXPECT_THROW(here.messages.Last({}), InvariantError);
}

}  // namespace
}  // namespace espalier
