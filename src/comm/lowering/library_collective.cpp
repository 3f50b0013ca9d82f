#include "comm/lowering/library_collective.hpp"

#include <algorithm>

#include "comm/lowering/message_buffers.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

/// Bytes of each member's piece, known to all alike.
std::vector<int64_t> SizesOf(const std::vector<Parcel>& parcels) {
  std::vector<int64_t> sizes;
  for (const Parcel& parcel : parcels) sizes.push_back(BytesOf(parcel));
  return sizes;
}

/// True if every parcel lies in place, all of one size, each behind the one before.
bool AreOneRun(const std::vector<Parcel>& parcels) {
  for (size_t i = 0; i < parcels.size(); ++i)
    if (!InPlace(parcels[i]) || BytesOf(parcels[i]) != BytesOf(parcels[0]) ||
        parcels[i][0].base != parcels[0][0].base + static_cast<int64_t>(i) * BytesOf(parcels[0]))
      return false;
  return true;
}

/// True if a slot for each member fits into the workspace that is planned for exchanging the pieces, on every member:
/// its own piece once for each of the others, and theirs.
bool SlotsFit(const std::vector<int64_t>& sizes, int64_t slot) {
  const auto n = static_cast<int64_t>(sizes.size());
  int64_t all = 0;
  for (int64_t bytes : sizes) all += Aligned(bytes);
  const int64_t least = *std::min_element(sizes.begin(), sizes.end());
  return n * slot <= (n - 1) * Aligned(least) + all - Aligned(least);
}

bool CanSum(const Parcel& parcel) {
  return std::all_of(parcel.begin(), parcel.end(),
                     [&](const View& view) { return view.dtype == parcel[0].dtype && view.dtype != Dtype::kI32; });
}

class Lowering {
 public:
  Lowering(const Program& program, const Coordinate& coordinate, const CommInstruction& comm)
      : comm_(comm),
        op_(program.graph->ops[static_cast<size_t>(comm.instruction->op)]),
        channel_(ChannelOf(program, *comm.instruction)),
        plan_(PlanTransfer(*program.graph, op_, program.mesh, coordinate)),
        members_(program.mesh.GroupSize(channel_.axes)),
        self_(static_cast<size_t>(program.mesh.IndexInGroup(channel_.axes, coordinate))),
        workspace_(comm.workspace, comm.instruction->workspace.bytes) {}

  std::optional<Exchange> Run() {
    const bool fits = op_.kind == OpKind::kAllGather       ? Gather()
                      : op_.kind == OpKind::kReduceScatter ? Scatter()
                                                           : AllReduce();
    if (!fits) return std::nullopt;
    return std::move(exchange_);
  }

 private:
  bool Gather() {
    std::vector<Parcel> to = ParcelsOf(plan_.receives, comm_.outputs, members_);
    const Parcel from = Whole(comm_.inputs);
    const std::vector<int64_t> sizes = SizesOf(to);
    if (InPlace(from) && AreOneRun(to)) {
      Emit(Collective::Kind::kAllGather, from[0].base, to[0][0].base, sizes[0]);
      return true;
    }
    const int64_t slot = Slot(sizes);
    if (slot == 0) return false;
    std::byte* slots = workspace_.Take(members_ * slot);
    Phase& phase = Emit(Collective::Kind::kAllGather, slots + static_cast<int64_t>(self_) * slot, slots, slot);
    for (size_t m = 0; m < to.size(); ++m) {
      Order(to[m]);
      const std::vector<View> packed = Packed(to[m], slots + static_cast<int64_t>(m) * slot);
      for (size_t i = 0; i < packed.size(); ++i) phase.unpacks.push_back(MakeCopy(to[m][i], packed[i]));
    }
    AddPacks(phase, from, slots + static_cast<int64_t>(self_) * slot);
    return true;
  }

  bool Scatter() {
    const std::vector<Parcel> from = ParcelsOf(plan_.sends, comm_.inputs, members_);
    Parcel to = Whole(comm_.outputs);
    const std::vector<int64_t> sizes = SizesOf(from);
    if (plan_.how != Reduce::kSum || !CanSum(Whole(comm_.inputs))) return false;
    if (InPlace(to) && AreOneRun(from)) {
      Emit(Collective::Kind::kReduceScatter, from[0][0].base, to[0].base, sizes[0], to[0].dtype);
      return true;
    }
    const int64_t slot = Slot(sizes);
    if (slot == 0) return false;
    std::byte* slots = workspace_.Take(members_ * slot);
    std::byte* mine = slots + static_cast<int64_t>(self_) * slot;
    Phase& phase = Emit(Collective::Kind::kReduceScatter, slots, mine, slot, Whole(comm_.inputs)[0].dtype);
    for (size_t m = 0; m < from.size(); ++m) AddPacks(phase, from[m], slots + static_cast<int64_t>(m) * slot);
    const std::vector<View> packed = Packed(to, mine);
    for (size_t i = 0; i < to.size(); ++i) phase.unpacks.push_back(MakeCopy(to[i], packed[i]));
    return true;
  }

  bool AllReduce() {
    const Parcel from = Whole(comm_.inputs), to = Whole(comm_.outputs);
    if (plan_.how != Reduce::kSum || from.empty() || !CanSum(from)) return false;
    const Dtype dtype = from[0].dtype;
    if (from.size() == 1) {
      Emit(Collective::Kind::kAllReduce, from[0].base, to[0].base, BytesOf(from), dtype);
      return true;
    }
    std::byte* flat = workspace_.Take(BytesOf(from));
    Phase& phase = Emit(Collective::Kind::kAllReduce, flat, flat, BytesOf(from), dtype);
    AddPacks(phase, from, flat);
    const std::vector<View> packed = Packed(to, flat);
    for (size_t i = 0; i < to.size(); ++i) phase.unpacks.push_back(MakeCopy(to[i], packed[i]));
    return true;
  }

  /// Bytes of a slot that takes the largest piece; 0 if there is nothing, or no room for as many.
  static int64_t Slot(const std::vector<int64_t>& sizes) {
    const int64_t slot = Aligned(*std::max_element(sizes.begin(), sizes.end()));
    return SlotsFit(sizes, slot) ? slot : 0;
  }

  static void AddPacks(Phase& phase, Parcel parcel, std::byte* base) {
    Order(parcel);
    const std::vector<View> packed = Packed(parcel, base);
    for (size_t i = 0; i < packed.size(); ++i) phase.packs.push_back(MakeCopy(packed[i], parcel[i]));
  }

  Phase& Emit(Collective::Kind kind, const std::byte* from, std::byte* to, int64_t bytes, Dtype dtype = Dtype::kF32) {
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
  Workspace workspace_;
  Exchange exchange_;
};

}  // namespace

std::optional<Exchange> LowerNative(const Program& program, const Coordinate& coordinate,
                                    const CommInstruction& instruction) {
  const OpKind kind = program.graph->ops[static_cast<size_t>(instruction.instruction->op)].kind;
  const bool collective = IsCollective(kind) && kind != OpKind::kAllToAll;
  if (!collective || ChannelOf(program, *instruction.instruction).axes.Empty()) return std::nullopt;
  return Lowering(program, coordinate, instruction).Run();
}

}  // namespace espalier
