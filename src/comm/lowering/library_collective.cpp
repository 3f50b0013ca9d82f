#include "comm/lowering/library_collective.hpp"

#include <algorithm>

#include "comm/lowering/message_buffers.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

/// Bytes of each member's message; the same list on all members.
std::vector<int64_t> SizesOf(const std::vector<MessageBuffers>& messages) {
  std::vector<int64_t> sizes;
  for (const MessageBuffers& message : messages) sizes.push_back(BytesOf(message));
  return sizes;
}

/// True if the messages are adjacent in memory, in order and of equal size, so that none needs packing.
bool AreAdjacent(const std::vector<MessageBuffers>& messages) {
  for (size_t i = 0; i < messages.size(); ++i)
    if (!InPlace(messages[i]) || BytesOf(messages[i]) != BytesOf(messages[0]) ||
        messages[i][0].base != messages[0][0].base + static_cast<int64_t>(i) * BytesOf(messages[0]))
      return false;
  return true;
}

bool CanSum(const MessageBuffers& message) {
  return std::all_of(message.begin(), message.end(),
                     [&](const View& view) { return view.dtype == message[0].dtype && view.dtype != Dtype::kI32; });
}

class CollectiveLowering {
 public:
  CollectiveLowering(const Program& program, const Coordinate& coordinate, const CommInstruction& comm)
      : comm_(comm),
        op_(program.graph->ops[static_cast<size_t>(comm.instruction.op)]),
        channel_(ChannelOf(program, comm.instruction)),
        plan_(PlanTransfer(*program.graph, op_, program.mesh, coordinate)),
        members_(program.mesh.GroupSize(channel_.axes)),
        self_(static_cast<size_t>(program.mesh.IndexInGroup(channel_.axes, coordinate))),
        workspace_(comm.workspace, comm.instruction.workspace.bytes) {}

  std::optional<Exchange> Run() {
    const bool fits = op_.kind == OpKind::kAllGather       ? Gather()
                      : op_.kind == OpKind::kReduceScatter ? Scatter()
                                                           : AllReduce();
    if (!fits) return std::nullopt;
    return std::move(exchange_);
  }

 private:
  bool Gather() {
    std::vector<MessageBuffers> to = MessagesByMember(plan_.receives, comm_.outputs, members_);
    const MessageBuffers from = WholeTensors(comm_.inputs);
    const std::vector<int64_t> sizes = SizesOf(to);
    if (InPlace(from) && AreAdjacent(to)) {
      Emit(LibraryCollective::Kind::kAllGather, from[0].base, to[0][0].base, sizes[0]);
      return true;
    }
    const int64_t slot = SlotBytes(sizes);
    if (slot == 0) return false;
    std::byte* slots = workspace_.Take(members_ * slot);
    Phase& phase = Emit(LibraryCollective::Kind::kAllGather, slots + static_cast<int64_t>(self_) * slot, slots, slot);
    for (size_t m = 0; m < to.size(); ++m) {
      SortBySize(to[m]);
      const std::vector<View> packed = Packed(to[m], slots + static_cast<int64_t>(m) * slot);
      for (size_t i = 0; i < packed.size(); ++i) phase.unpacks.push_back(MakeCopy(to[m][i], packed[i]));
    }
    AddPacks(phase, from, slots + static_cast<int64_t>(self_) * slot);
    return true;
  }

  bool Scatter() {
    const std::vector<MessageBuffers> from = MessagesByMember(plan_.sends, comm_.inputs, members_);
    MessageBuffers to = WholeTensors(comm_.outputs);
    const std::vector<int64_t> sizes = SizesOf(from);
    if (plan_.how != Reduce::kSum || !CanSum(WholeTensors(comm_.inputs))) return false;
    if (InPlace(to) && AreAdjacent(from)) {
      Emit(LibraryCollective::Kind::kReduceScatter, from[0][0].base, to[0].base, sizes[0], to[0].dtype);
      return true;
    }
    const int64_t slot = SlotBytes(sizes);
    if (slot == 0) return false;
    std::byte* slots = workspace_.Take(members_ * slot);
    std::byte* mine = slots + static_cast<int64_t>(self_) * slot;
    Phase& phase =
        Emit(LibraryCollective::Kind::kReduceScatter, slots, mine, slot, WholeTensors(comm_.inputs)[0].dtype);
    for (size_t m = 0; m < from.size(); ++m) AddPacks(phase, from[m], slots + static_cast<int64_t>(m) * slot);
    const std::vector<View> packed = Packed(to, mine);
    for (size_t i = 0; i < to.size(); ++i) phase.unpacks.push_back(MakeCopy(to[i], packed[i]));
    return true;
  }

  bool AllReduce() {
    const MessageBuffers from = WholeTensors(comm_.inputs), to = WholeTensors(comm_.outputs);
    if (plan_.how != Reduce::kSum || from.empty() || !CanSum(from)) return false;
    const Dtype dtype = from[0].dtype;
    if (from.size() == 1) {
      Emit(LibraryCollective::Kind::kAllReduce, from[0].base, to[0].base, BytesOf(from), dtype);
      return true;
    }
    std::byte* flat = workspace_.Take(BytesOf(from));
    Phase& phase = Emit(LibraryCollective::Kind::kAllReduce, flat, flat, BytesOf(from), dtype);
    AddPacks(phase, from, flat);
    const std::vector<View> packed = Packed(to, flat);
    for (size_t i = 0; i < to.size(); ++i) phase.unpacks.push_back(MakeCopy(to[i], packed[i]));
    return true;
  }

  static void AddPacks(Phase& phase, MessageBuffers message, std::byte* base) {
    SortBySize(message);
    const std::vector<View> packed = Packed(message, base);
    for (size_t i = 0; i < packed.size(); ++i) phase.packs.push_back(MakeCopy(packed[i], message[i]));
  }

  Phase& Emit(LibraryCollective::Kind kind, const std::byte* from, std::byte* to, int64_t bytes,
              Dtype dtype = Dtype::kF32) {
    exchange_.channel = channel_;
    Phase& phase = exchange_.phases.emplace_back();
    phase.collective = {kind, from, to, bytes, dtype};
    return phase;
  }

  const CommInstruction& comm_;
  const Op& op_;
  Channel channel_;
  TransferPlan plan_;
  int members_;
  size_t self_;
  WorkspaceAllocator workspace_;
  Exchange exchange_;
};

}  // namespace

std::optional<Exchange> LowerToLibraryCollective(const Program& program, const Coordinate& coordinate,
                                                 const CommInstruction& instruction) {
  const OpKind kind = program.graph->op(instruction.instruction.op).kind;
  const bool collective = IsCollective(kind) && kind != OpKind::kAllToAll;
  if (!collective || ChannelOf(program, instruction.instruction).axes.Empty()) return std::nullopt;
  return CollectiveLowering(program, coordinate, instruction).Run();
}

}  // namespace espalier
