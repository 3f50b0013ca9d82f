// Messages of an instruction that only synchronizes its members (CommInstruction::meeting; device "sleep"). Every
// member sends one message to every other one and waits for theirs, so no member can finish before the last one has
// arrived, whatever the MPI library sends eagerly, and however many phases the exchange itself would have.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/lowering/exchange.hpp"

namespace espalier {

/// The bytes that two members of a meeting would exchange.
struct MeetingPeer {
  int peer = 0;                     ///< index in the channel's group
  int64_t sends = 0, receives = 0;  ///< bytes in all phases
};

/// The members that this one waits for: the peer of a send or recv, otherwise all other members of the group.
std::vector<MeetingPeer> MeetingPeersOf(const Exchange& exchange, int members, int self);

class MeetingMessages {
 public:
  /// Bytes of memory for meetings with `peers` members.
  static int64_t BytesFor(int peers);

  /// Messages in `memory`, which must have BytesFor(peers.size()) bytes and outlive this. Several meetings may share it
  /// if they follow one another.
  MeetingMessages(std::vector<MeetingPeer> peers, std::span<std::byte> memory);

  /// Their buffers.
  Phase ToPhase() const;
  /// Writes the messages to send.
  void Write(const Arrival& mine) const;
  /// The last arrival, from the received messages. CHECKs that the members agree on the bytes of a real exchange.
  Arrival Last(const Arrival& mine) const;

 private:
  std::byte* SendBuffer(size_t i) const;
  std::byte* ReceiveBuffer(size_t i) const;

  std::vector<MeetingPeer> peers_;
  std::span<std::byte> memory_;
};

}  // namespace espalier
