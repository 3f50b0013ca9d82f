// A communication instruction as messages and copies: pure, so that it is tested without a launcher.
#pragma once

#include <optional>
#include <vector>

#include "comm/lowering/box_copy.hpp"
#include "comm/lowering/reduce.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier {

/// Contiguous bytes to or from one member of the channel.
struct Message {
  int peer = 0;  ///< index in the channel's group
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// A collective of a communication library, over the channel's group.
struct Collective {
  enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce };
  Kind kind = Kind::kAllGather;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;          ///< of one member's piece: what it gives to a gather, what it gets from a reduction
  Dtype dtype = Dtype::kF32;  ///< of a reduction, which is a sum
};

/// Messages that travel together, and the work on either side of them.
struct Phase {
  std::vector<BoxCopy> packs;  ///< before the messages start
  std::vector<Message> receives;
  std::vector<Message> sends;
  std::optional<Collective> collective;  ///< in place of messages; from LowerNative only
  std::vector<BoxCopy> own;              ///< pieces that stay on this rank; while the messages travel
  std::vector<BoxCopy> unpacks;          ///< after all have arrived
  std::vector<Join> joins;               ///< after all have arrived
};

struct Exchange {
  Channel channel;
  std::vector<Phase> phases;
};

/// Lowers one instruction for the rank at `coordinate`. A piece that is contiguous travels from or to its place; others
/// go through the workspace, sends first, then receives, 64-byte aligned. CHECKs that the planned workspace suffices.
Exchange LowerInstruction(const Program& program, const Coordinate& coordinate, const CommInstruction& instruction);

}  // namespace espalier
