// The buffers of one message, and the workspace in which messages are packed: shared by all lowerings.
#pragma once

#include <vector>

#include "comm/lowering/strided_copy.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Hands out the planned workspace of an instruction, front to back.
class WorkspaceAllocator {
 public:
  WorkspaceAllocator(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}

  /// The next `bytes`, 64-byte aligned; CHECKs that they are planned.
  std::byte* Take(int64_t bytes);

 private:
  std::byte* base_;
  int64_t bytes_;
  int64_t used_ = 0;
};

/// Boxes of one or more tensors, which go to one member or come from it.
using MessageBuffers = std::vector<View>;

int64_t BytesOf(const MessageBuffers& message);
/// The boxes that go to one member, as messages: large ones by themselves (IsOwnMessage), then all others. All members
/// split alike.
std::vector<MessageBuffers> SplitMessage(const MessageBuffers& boxes);
/// Sorts by element size, largest first, so that every element of a packed message is aligned.
void SortBySize(MessageBuffers& message);
/// The message needs no packing: one dense buffer.
bool InPlace(const MessageBuffers& message);
/// The buffers of a message, packed one after another from `base`.
std::vector<View> Packed(const MessageBuffers& message, std::byte* base);

/// Sorts the transfers by peer: one message per member of the group, which may be empty.
std::vector<MessageBuffers> MessagesByMember(const std::vector<Transfer>& transfers, const std::vector<Tensor>& tensors,
                                             int members);
/// One message of all tensors that are not empty.
MessageBuffers WholeTensors(const std::vector<Tensor>& tensors);

}  // namespace espalier
