#include "comm/lowering/message_buffers.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::byte* WorkspaceAllocator::Take(int64_t bytes) {
  const int64_t offset = used_;
  used_ += Aligned(bytes);
  CHECK(used_ <= bytes_, "communication needs {} bytes of workspace, {} are planned", used_, bytes_);
  return base_ + offset;
}

int64_t BytesOf(const MessageBuffers& message) {
  return std::accumulate(message.begin(), message.end(), int64_t{0},
                         [](int64_t sum, const View& view) { return sum + view.Bytes(); });
}

std::vector<MessageBuffers> SplitMessage(const MessageBuffers& boxes) {
  std::vector<MessageBuffers> messages;
  MessageBuffers small;
  for (const View& box : boxes)
    if (IsOwnMessage(box.Bytes()))
      messages.push_back({box});
    else
      small.push_back(box);
  SortBySize(small);
  if (!small.empty()) messages.push_back(std::move(small));
  return messages;
}

void SortBySize(MessageBuffers& message) {
  std::stable_sort(message.begin(), message.end(),
                   [](const View& a, const View& b) { return SizeOf(a.dtype) > SizeOf(b.dtype); });
}

bool InPlace(const MessageBuffers& message) { return message.size() == 1 && message[0].IsDense(); }

std::vector<View> Packed(const MessageBuffers& message, std::byte* base) {
  std::vector<View> packed;
  for (const View& view : message) {
    packed.push_back(PackedAt(base, view));
    base += view.Bytes();
  }
  return packed;
}

std::vector<MessageBuffers> MessagesByMember(const std::vector<Transfer>& transfers, const std::vector<Tensor>& tensors,
                                             int members) {
  std::vector<MessageBuffers> messages(static_cast<size_t>(members));
  for (const Transfer& t : transfers) {
    View view = ViewOf(tensors[static_cast<size_t>(t.tensor)], t.box);
    if (view.Bytes() > 0) messages[static_cast<size_t>(t.peer)].push_back(std::move(view));
  }
  return messages;
}

MessageBuffers WholeTensors(const std::vector<Tensor>& tensors) {
  MessageBuffers message;
  for (const Tensor& tensor : tensors)
    if (Volume(tensor.shape) > 0) message.push_back(WholeOf(tensor));
  return message;
}

}  // namespace espalier
