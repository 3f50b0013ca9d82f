#include "comm/lowering/exchange.hpp"

#include "comm/lowering/message_buffers.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void AddSends(Phase& phase, std::vector<Parcel>& parcels, int self, Workspace& workspace) {
  const Parcel* before = nullptr;
  for (size_t peer = 0; peer < parcels.size(); ++peer) {
    Parcel& parcel = parcels[peer];
    if (static_cast<int>(peer) == self || parcel.empty()) continue;
    Order(parcel);
    Message message{static_cast<int>(peer), parcel[0].base, BytesOf(parcel)};
    if (before != nullptr && *before == parcel) {  // one packed copy serves every peer that gets the same
      message.data = phase.sends.back().data;
    } else if (!InPlace(parcel)) {
      message.data = workspace.Take(message.bytes);
      const std::vector<View> packed = Packed(parcel, message.data);
      for (size_t i = 0; i < parcel.size(); ++i) phase.packs.push_back(MakeCopy(packed[i], parcel[i]));
    }
    before = &parcel;
    phase.sends.push_back(message);
  }
}

void AddReceives(Phase& phase, std::vector<Parcel>& parcels, int self, Workspace& workspace) {
  for (size_t peer = 0; peer < parcels.size(); ++peer) {
    Parcel& parcel = parcels[peer];
    if (static_cast<int>(peer) == self || parcel.empty()) continue;
    Order(parcel);
    Message message{static_cast<int>(peer), parcel[0].base, BytesOf(parcel)};
    if (!InPlace(parcel)) {
      message.data = workspace.Take(message.bytes);
      const std::vector<View> packed = Packed(parcel, message.data);
      for (size_t i = 0; i < parcel.size(); ++i) phase.unpacks.push_back(MakeCopy(parcel[i], packed[i]));
    }
    phase.receives.push_back(message);
  }
}

/// Every member's parcel for `outputs`, to be joined there. Each parcel holds one piece per output, of its extents; the
/// own pieces lie in `own`.
void AddJoins(Phase& phase, Parcel outputs, Parcel own, size_t members, int self, Reduce how, Workspace& workspace) {
  if (outputs.empty()) return;
  Order(outputs);
  Order(own);
  CHECK(outputs.size() == own.size(), "{} pieces to join with {} own ones", outputs.size(), own.size());
  std::vector<Join> joins;
  for (size_t i = 0; i < outputs.size(); ++i) {
    CHECK(outputs[i].IsDense(), "a joined piece is a whole local tensor");
    joins.push_back({outputs[i].dtype, how, MakeCopy(outputs[i], own[i]), static_cast<size_t>(self),
                     std::vector<const std::byte*>(members)});
  }
  for (size_t peer = 0; peer < members; ++peer) {
    if (static_cast<int>(peer) == self) continue;
    const Message message{static_cast<int>(peer), workspace.Take(BytesOf(outputs)), BytesOf(outputs)};
    phase.receives.push_back(message);
    const std::vector<View> packed = Packed(outputs, message.data);
    for (size_t i = 0; i < outputs.size(); ++i) joins[i].sources[peer] = packed[i].base;
  }
  phase.joins = std::move(joins);
}

class Lowering {
 public:
  Lowering(const Program& program, const Coordinate& coordinate, const CommInstruction& comm)
      : program_(program),
        coordinate_(coordinate),
        comm_(comm),
        op_(program.graph->ops[static_cast<size_t>(comm.instruction->op)]),
        workspace_(comm.workspace, comm.instruction->workspace.bytes) {}

  Exchange Run() {
    exchange_.channel = ChannelOf(program_, *comm_.instruction);
    members_ = program_.mesh.GroupSize(exchange_.channel.axes);
    self_ = program_.mesh.IndexInGroup(exchange_.channel.axes, coordinate_);
    if (op_.kind == OpKind::kSend)
      Send();
    else if (op_.kind == OpKind::kRecv)
      Receive();
    else if (op_.kind == OpKind::kGatherStages)
      GatherStages();
    else if (op_.kind == OpKind::kAllReduce)
      AllReduce();
    else
      Group();
    return std::move(exchange_);
  }

 private:
  void Send() {
    std::vector<Parcel> parcels(static_cast<size_t>(members_));
    parcels.at(static_cast<size_t>(op_.Peer())) = Whole(comm_.inputs);
    AddSends(exchange_.phases.emplace_back(), parcels, self_, workspace_);
  }

  void Receive() {
    std::vector<Parcel> parcels(static_cast<size_t>(members_));
    parcels.at(static_cast<size_t>(op_.Peer())) = Whole(comm_.outputs);
    AddReceives(exchange_.phases.emplace_back(), parcels, self_, workspace_);
  }

  /// Every stage sends the scalars that live on it to all others.
  void GatherStages() {
    std::vector<Parcel> receives(static_cast<size_t>(members_));
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      const Value& value = program_.graph->values[static_cast<size_t>(op_.inputs[i])];
      CHECK(value.chunk >= 0, "gather_stages of {}, which lives on all stages", value.name);
      const int stage = program_.stage_of_chunk.at(static_cast<size_t>(value.chunk));
      receives[static_cast<size_t>(members_ > 1 ? stage : 0)].push_back(WholeOf(comm_.outputs[i]));
    }
    const Parcel mine = Whole(comm_.inputs);
    std::vector<Parcel> sends(static_cast<size_t>(members_), mine);
    ExchangePieces(sends, receives);
  }

  /// A piece goes where the target's placements want it.
  void Group() {
    const TransferPlan plan = PlanTransfer(*program_.graph, op_, program_.mesh, coordinate_);
    CHECK(program_.mesh.Real(plan.axes) == exchange_.channel.axes, "group of {}", op_.kind);
    std::vector<Parcel> sends = ParcelsOf(plan.sends, comm_.inputs, members_);
    std::vector<Parcel> receives = ParcelsOf(plan.receives, comm_.outputs, members_);
    if (plan.reduce)
      JoinPieces(sends, receives, plan.how);
    else
      ExchangePieces(sends, receives);
  }

  void ExchangePieces(std::vector<Parcel>& sends, std::vector<Parcel>& receives) {
    Phase& phase = exchange_.phases.emplace_back();
    AddSends(phase, sends, self_, workspace_);
    AddReceives(phase, receives, self_, workspace_);
    const Parcel& from = sends[static_cast<size_t>(self_)];
    const Parcel& to = receives[static_cast<size_t>(self_)];
    CHECK(from.size() == to.size(), "{} own pieces become {}", from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) phase.own.push_back(MakeCopy(to[i], from[i]));
  }

  void JoinPieces(std::vector<Parcel>& sends, std::vector<Parcel>& receives, Reduce how) {
    for (const Parcel& parcel : receives) CHECK(parcel == receives[0], "members send different pieces to be joined");
    Phase& phase = exchange_.phases.emplace_back();
    const Parcel own = sends[static_cast<size_t>(self_)];
    AddSends(phase, sends, self_, workspace_);
    AddJoins(phase, receives[0], own, static_cast<size_t>(members_), self_, how, workspace_);
  }

  /// All tensors as one flat one: several are packed into the workspace and joined there.
  void AllReduce() {
    const TransferPlan plan = PlanTransfer(*program_.graph, op_, program_.mesh, coordinate_);
    Parcel inputs = Whole(comm_.inputs), outputs = Whole(comm_.outputs);
    if (inputs.empty()) return;
    for (const View& view : inputs)
      CHECK(view.dtype == inputs[0].dtype, "all_reduce of tensors of several element types");
    const Dtype dtype = inputs[0].dtype;
    const int64_t count = BytesOf(inputs) / SizeOf(dtype);
    if (inputs.size() == 1) {
      ReduceFlat({inputs[0].base, dtype, {count}, {0}}, {outputs[0].base, dtype, {count}, {0}}, plan.how);
      return;
    }
    std::byte* flat = workspace_.Take(BytesOf(inputs));
    ReduceFlat({flat, dtype, {count}, {0}}, {flat, dtype, {count}, {0}}, plan.how);
    const std::vector<View> packed = Packed(inputs, flat);
    for (size_t i = 0; i < inputs.size(); ++i) {
      exchange_.phases.front().packs.push_back(MakeCopy(packed[i], inputs[i]));
      AfterArrival(exchange_.phases.back(), MakeCopy(outputs[i], packed[i]));
    }
  }

  /// What `phase` leaves in the workspace goes to its place when all else is done.
  void AfterArrival(Phase& phase, BoxCopy copy) {
    if (phase.joins.empty()) {
      phase.unpacks.push_back(std::move(copy));
      return;
    }
    exchange_.phases.emplace_back().unpacks.push_back(std::move(copy));
  }

  /// Two members exchange everything. More exchange pieces, join each its own, and exchange the joined pieces: the same
  /// sums with 2/n of the traffic. `from` may be `to`.
  void ReduceFlat(const Tensor& from, const Tensor& to, Reduce how) {
    const bool pieces = members_ > 2;
    const auto piece = [&](const Tensor& tensor, int member) {
      const Range whole{0, tensor.shape[0]};
      return ViewOf(tensor, {pieces ? ShardOf(whole, members_, member) : whole});
    };
    std::vector<Parcel> sends(static_cast<size_t>(members_)), joined(sends), receives(sends);
    for (int member = 0; member < members_; ++member) {
      const auto m = static_cast<size_t>(member);
      if (piece(from, member).Bytes() > 0) {
        sends[m] = {piece(from, member)};
        receives[m] = {piece(to, member)};
      }
      if (piece(to, self_).Bytes() > 0) joined[m] = {piece(to, self_)};
    }
    const Parcel own = sends[static_cast<size_t>(self_)];
    Phase& first = exchange_.phases.emplace_back();
    AddSends(first, sends, self_, workspace_);
    AddJoins(first, joined[0], own, static_cast<size_t>(members_), self_, how, workspace_);
    if (!pieces) return;
    Phase& second = exchange_.phases.emplace_back();
    AddSends(second, joined, self_, workspace_);
    AddReceives(second, receives, self_, workspace_);
  }

  const Program& program_;
  const Coordinate& coordinate_;
  const CommInstruction& comm_;
  const Op& op_;
  Workspace workspace_;
  Exchange exchange_;
  int members_ = 1;
  int self_ = 0;
};

}  // namespace

Exchange LowerInstruction(const Program& program, const Coordinate& coordinate, const CommInstruction& instruction) {
  return Lowering(program, coordinate, instruction).Run();
}

}  // namespace espalier
