#include "comm/mpi/meeting.hpp"

#include <algorithm>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The beginning of every message.
struct Head {
  int64_t arrived_ns;  ///< by the steady clock of the node
  int64_t takes_ns;
  int64_t bytes;  ///< bytes that a real exchange would send
};

constexpr int64_t kSlotBytes = sizeof(Head) + kMeetingBytes;

int64_t MessageBytes(int64_t bytes) { return int64_t{sizeof(Head)} + std::min(bytes, kMeetingBytes); }

}  // namespace

std::vector<MeetingPeer> MeetingPeersOf(const Exchange& exchange, int members, int self) {
  std::vector<MeetingPeer> all(static_cast<size_t>(members));
  std::vector<bool> has_message(all.size(), exchange.channel.route == Route::kGroup);
  for (size_t i = 0; i < all.size(); ++i) all[i].peer = static_cast<int>(i);
  for (const Phase& phase : exchange.phases) {
    for (const Message& message : phase.sends) {
      all.at(static_cast<size_t>(message.peer)).sends += message.bytes;
      has_message[static_cast<size_t>(message.peer)] = true;
    }
    for (const Message& message : phase.receives) {
      all.at(static_cast<size_t>(message.peer)).receives += message.bytes;
      has_message[static_cast<size_t>(message.peer)] = true;
    }
  }
  std::vector<MeetingPeer> peers;
  for (const MeetingPeer& peer : all)
    if (peer.peer != self && has_message[static_cast<size_t>(peer.peer)]) peers.push_back(peer);
  return peers;
}

int64_t MeetingMessages::BytesFor(int peers) { return 2 * peers * kSlotBytes; }

MeetingMessages::MeetingMessages(std::vector<MeetingPeer> peers, std::span<std::byte> memory)
    : peers_(std::move(peers)), memory_(memory) {
  CHECK(std::ssize(memory) >= BytesFor(static_cast<int>(peers_.size())), "{} bytes for {} messages", memory.size(),
        2 * peers_.size());
}

std::byte* MeetingMessages::SendBuffer(size_t i) const { return &memory_[2 * i * kSlotBytes]; }
std::byte* MeetingMessages::ReceiveBuffer(size_t i) const { return &memory_[(2 * i + 1) * kSlotBytes]; }

Phase MeetingMessages::ToPhase() const {
  Phase phase;
  for (size_t i = 0; i < peers_.size(); ++i) {
    phase.sends.push_back({peers_[i].peer, SendBuffer(i), MessageBytes(peers_[i].sends)});
    phase.receives.push_back({peers_[i].peer, ReceiveBuffer(i), MessageBytes(peers_[i].receives)});
  }
  return phase;
}

void MeetingMessages::Write(const Arrival& mine) const {
  using std::chrono::nanoseconds;
  const int64_t arrived_ns = std::chrono::duration_cast<nanoseconds>(mine.at.time_since_epoch()).count();
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Head head{arrived_ns, mine.takes.count(), peers_[i].sends};
    std::memcpy(SendBuffer(i), &head, sizeof head);
  }
}

Arrival MeetingMessages::Last(const Arrival& mine) const {
  Arrival last = mine;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Head head;
    std::memcpy(&head, ReceiveBuffer(i), sizeof head);
    CHECK(head.bytes == peers_[i].receives, "member {} would send {} bytes, {} are expected", peers_[i].peer,
          head.bytes, peers_[i].receives);
    last.at = std::max(last.at, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(head.arrived_ns)));
    last.takes = std::max(last.takes, std::chrono::nanoseconds(head.takes_ns));
  }
  return last;
}

}  // namespace espalier
