#include "comm/lowering/exchange.hpp"

#include "comm/lowering/message_buffers.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The message of these boxes to or from a member: in place, or else in the workspace, where each box gets a place.
/// Calls copy(place, box).
template <typename Copy>
Message MessageOf(size_t peer, const MessageBuffers& boxes, WorkspaceAllocator& workspace, const Copy& copy) {
  Message message{static_cast<int>(peer), boxes[0].base, BytesOf(boxes)};
  if (InPlace(boxes)) return message;
  message.data = workspace.Take(message.bytes);
  const std::vector<View> packed = Packed(boxes, message.data);
  for (size_t i = 0; i < boxes.size(); ++i) copy(packed[i], boxes[i]);
  return message;
}

void AddSends(Phase& phase, const std::vector<MessageBuffers>& boxes, int self, WorkspaceAllocator& workspace) {
  const MessageBuffers* previous = nullptr;
  size_t begin = 0;  // of the messages to the peer before
  for (size_t peer = 0; peer < boxes.size(); ++peer) {
    if (static_cast<int>(peer) == self || boxes[peer].empty()) continue;
    const size_t end = phase.sends.size();
    if (previous != nullptr && *previous == boxes[peer]) {  // peers that receive the same boxes share packed copies
      for (size_t i = begin; i < end; ++i) {
        Message message = phase.sends[i];
        message.peer = static_cast<int>(peer);
        phase.sends.push_back(message);
      }
    } else {
      const auto pack = [&](const View& place, const View& box) { phase.packs.push_back(MakeCopy(place, box)); };
      for (const MessageBuffers& message : SplitMessage(boxes[peer]))
        phase.sends.push_back(MessageOf(peer, message, workspace, pack));
    }
    previous = &boxes[peer];
    begin = end;
  }
}

void AddReceives(Phase& phase, const std::vector<MessageBuffers>& boxes, int self, WorkspaceAllocator& workspace) {
  const auto unpack = [&](const View& place, const View& box) { phase.unpacks.push_back(MakeCopy(box, place)); };
  for (size_t peer = 0; peer < boxes.size(); ++peer) {
    if (static_cast<int>(peer) == self) continue;
    for (const MessageBuffers& message : SplitMessage(boxes[peer]))
      phase.receives.push_back(MessageOf(peer, message, workspace, unpack));
  }
}

/// Receives every member's boxes and reduces them into `outputs`. There is one box per output, with the output's
/// extents; `own` are this member's boxes.
void AddReductions(Phase& phase, const MessageBuffers& outputs, const MessageBuffers& own, size_t members, int self,
                   Reduce how, WorkspaceAllocator& workspace) {
  CHECK(outputs.size() == own.size(), "{} buffers to reduce with {} own ones", outputs.size(), own.size());
  const std::vector<MessageBuffers> messages = SplitMessage(outputs), own_messages = SplitMessage(own);
  for (size_t m = 0; m < messages.size(); ++m)
    for (size_t i = 0; i < messages[m].size(); ++i) {
      const View& output = messages[m][i];
      CHECK(output.IsDense(), "the output of a reduction is a whole local tensor");
      phase.reductions.push_back({output.dtype, how, MakeCopy(output, own_messages[m][i]), static_cast<size_t>(self),
                                  std::vector<const std::byte*>(members)});
    }
  for (size_t peer = 0; peer < members; ++peer) {
    if (static_cast<int>(peer) == self) continue;
    auto reduction = phase.reductions.begin();
    for (const MessageBuffers& buffers : messages) {
      const Message message{static_cast<int>(peer), workspace.Take(BytesOf(buffers)), BytesOf(buffers)};
      phase.receives.push_back(message);
      for (const View& packed : Packed(buffers, message.data)) (reduction++)->sources[peer] = packed.base;
    }
  }
}

class ExchangeLowering {
 public:
  ExchangeLowering(const Program& program, const Coordinate& coordinate, const CommInstruction& comm)
      : program_(program),
        coordinate_(coordinate),
        comm_(comm),
        op_(program.graph->ops[static_cast<size_t>(comm.instruction.op)]),
        workspace_(comm.workspace, comm.instruction.workspace.bytes) {}

  Exchange Run() {
    exchange_.channel = ChannelOf(program_, comm_.instruction);
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
    std::vector<MessageBuffers> messages(static_cast<size_t>(members_));
    messages.at(op_.Peer()) = WholeTensors(comm_.inputs);
    AddSends(exchange_.phases.emplace_back(), messages, self_, workspace_);
  }

  void Receive() {
    std::vector<MessageBuffers> messages(static_cast<size_t>(members_));
    messages.at(op_.Peer()) = WholeTensors(comm_.outputs);
    AddReceives(exchange_.phases.emplace_back(), messages, self_, workspace_);
  }

  /// Every stage sends the scalars that live on it to all others.
  void GatherStages() {
    std::vector<MessageBuffers> receives(static_cast<size_t>(members_));
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      const Value& value = program_.graph->values[static_cast<size_t>(op_.inputs[i])];
      CHECK(value.chunk >= 0, "gather_stages of {}, which lives on all stages", value.name);
      const int stage = program_.stage_of_chunk.at(static_cast<size_t>(value.chunk));
      receives[static_cast<size_t>(members_ > 1 ? stage : 0)].push_back(WholeOf(comm_.outputs[i]));
    }
    const MessageBuffers mine = WholeTensors(comm_.inputs);
    std::vector<MessageBuffers> sends(static_cast<size_t>(members_), mine);
    ExchangeBuffers(sends, receives);
  }

  /// Every box goes to the members whose placements need it.
  void Group() {
    const TransferPlan plan = PlanTransfer(*program_.graph, op_, program_.mesh, coordinate_);
    CHECK(program_.mesh.Real(plan.axes) == exchange_.channel.axes, "group of {}", op_.kind);
    std::vector<MessageBuffers> sends = MessagesByMember(plan.sends, comm_.inputs, members_);
    std::vector<MessageBuffers> receives = MessagesByMember(plan.receives, comm_.outputs, members_);
    if (plan.reduce)
      ExchangeAndReduce(sends, receives, plan.how);
    else
      ExchangeBuffers(sends, receives);
  }

  void ExchangeBuffers(std::vector<MessageBuffers>& sends, std::vector<MessageBuffers>& receives) {
    Phase& phase = exchange_.phases.emplace_back();
    AddSends(phase, sends, self_, workspace_);
    AddReceives(phase, receives, self_, workspace_);
    const MessageBuffers& from = sends[static_cast<size_t>(self_)];
    const MessageBuffers& to = receives[static_cast<size_t>(self_)];
    CHECK(from.size() == to.size(), "{} own buffers become {}", from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) phase.own.push_back(MakeCopy(to[i], from[i]));
  }

  void ExchangeAndReduce(std::vector<MessageBuffers>& sends, std::vector<MessageBuffers>& receives, Reduce how) {
    for (const MessageBuffers& message : receives)
      CHECK(message == receives[0], "members send different buffers to be reduced");
    Phase& phase = exchange_.phases.emplace_back();
    const MessageBuffers own = sends[static_cast<size_t>(self_)];
    AddSends(phase, sends, self_, workspace_);
    AddReductions(phase, receives[0], own, static_cast<size_t>(members_), self_, how, workspace_);
  }

  /// All tensors as one flat tensor: several are packed into the workspace and reduced there.
  void AllReduce() {
    const TransferPlan plan = PlanTransfer(*program_.graph, op_, program_.mesh, coordinate_);
    MessageBuffers inputs = WholeTensors(comm_.inputs), outputs = WholeTensors(comm_.outputs);
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

  /// Copies a result out of the workspace, after the reductions of `phase` if it has any.
  void AfterArrival(Phase& phase, StridedCopy copy) {
    if (phase.reductions.empty()) {
      phase.unpacks.push_back(std::move(copy));
      return;
    }
    exchange_.phases.emplace_back().unpacks.push_back(std::move(copy));
  }

  /// Two members exchange everything. More than two exchange shards, reduce one shard each, and exchange the results:
  /// the same sums with 2/n of the traffic. `from` may be `to`.
  void ReduceFlat(const Tensor& from, const Tensor& to, Reduce how) {
    const bool sharded = members_ > 2;
    const auto shard = [&](const Tensor& tensor, int member) {
      const Range whole{0, tensor.shape[0]};
      return ViewOf(tensor, {sharded ? ShardOf(whole, members_, member) : whole});
    };
    std::vector<MessageBuffers> sends(static_cast<size_t>(members_)), reduced(sends), receives(sends);
    for (int member = 0; member < members_; ++member) {
      const auto m = static_cast<size_t>(member);
      if (shard(from, member).Bytes() > 0) {
        sends[m] = {shard(from, member)};
        receives[m] = {shard(to, member)};
      }
      if (shard(to, self_).Bytes() > 0) reduced[m] = {shard(to, self_)};
    }
    const MessageBuffers own = sends[static_cast<size_t>(self_)];
    Phase& first = exchange_.phases.emplace_back();
    AddSends(first, sends, self_, workspace_);
    AddReductions(first, reduced[0], own, static_cast<size_t>(members_), self_, how, workspace_);
    if (!sharded) return;
    Phase& second = exchange_.phases.emplace_back();
    AddSends(second, reduced, self_, workspace_);
    AddReceives(second, receives, self_, workspace_);
  }

  const Program& program_;
  const Coordinate& coordinate_;
  const CommInstruction& comm_;
  const Op& op_;
  WorkspaceAllocator workspace_;
  Exchange exchange_;
  int members_ = 1;
  int self_ = 0;
};

}  // namespace

Exchange LowerInstruction(const Program& program, const Coordinate& coordinate, const CommInstruction& instruction) {
  return ExchangeLowering(program, coordinate, instruction).Run();
}

}  // namespace espalier
