// Lowers a communication instruction to messages and copies. Pure, so that it is tested without a launcher.
#pragma once

#include <optional>
#include <vector>

#include "comm/lowering/reduce.hpp"
#include "comm/lowering/strided_copy.hpp"
#include "espalier/comm/communication.hpp"

namespace espalier {

/// Contiguous bytes sent to, or received from, one member of the channel.
struct Message {
  int peer = 0;  ///< index in the channel's group
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// A collective of a communication library, over the channel's group.
struct LibraryCollective {
  enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce };
  Kind kind = Kind::kAllGather;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;          ///< bytes of one member's shard: the input of an all-gather, the output of a reduction
  Dtype dtype = Dtype::kF32;  ///< type of a reduction, which is always a sum
};

/// Messages that are in flight together, with the work before and after them.
struct Phase {
  std::vector<StridedCopy> packs;  ///< before the messages start
  std::vector<Message> receives;
  std::vector<Message> sends;
  std::optional<LibraryCollective> collective;  ///< instead of messages; only from LowerToLibraryCollective
  std::vector<StridedCopy> own;                 ///< boxes that stay on this rank; while messages are in flight
  std::vector<StridedCopy> unpacks;             ///< after all messages have arrived
  std::vector<Reduction> reductions;            ///< after all messages have arrived
};

struct Exchange {
  Channel channel;
  std::vector<Phase> phases;
};

/// Lowers one instruction for the rank at `coordinate`. Contiguous boxes are sent and received in place. Others are
/// packed in the workspace, sends first, then receives, 64-byte aligned. CHECKs that the planned workspace suffices.
Exchange LowerInstruction(const Program& program, const Coordinate& coordinate, const CommInstruction& instruction);

}  // namespace espalier
