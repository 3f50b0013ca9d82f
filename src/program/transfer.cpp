// The boxes that each member of a communication op sends and receives, from the types alone: the source box of one
// member intersected with the target box of another.
#include <algorithm>

#include "espalier/graph/local_range.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

const Type& TypeOf(const Graph& graph, int value) { return graph.value(value).type; }

/// Elements that are both in the shard of `a` at one coordinate and in the shard of `b` at another.
int64_t CommonVolume(const Type& a, const Coordinate& at, const Type& b, const Coordinate& there, const Mesh& mesh) {
  int64_t n = 1;
  for (size_t d = 0; d < a.shape.size() && n > 0; ++d) {
    const Range mine = LocalRange(a, d, mesh, at), theirs = LocalRange(b, d, mesh, there);
    n *= std::max<int64_t>(0, std::min(mine.end, theirs.end) - std::max(mine.begin, theirs.begin));
  }
  return n;
}

/// The boxes of a source that the rank at `coordinate` contributes: its shard, or the rows of the op's strip in it.
std::vector<Box> SourceBoxes(const Type& from, const std::optional<Strip>& strip, const Mesh& mesh,
                             const Coordinate& coordinate) {
  if (strip) return StripBoxes(from, *strip, mesh, coordinate);
  return {LocalBox(from, mesh, coordinate)};
}

/// CommonVolume of the rows of a strip of `a`.
int64_t CommonVolume(const Strip& strip, const Type& a, const Coordinate& at, const Type& b, const Coordinate& there,
                     const Mesh& mesh) {
  const Box theirs = LocalBox(b, mesh, there);
  int64_t n = 0;
  for (const Box& mine : StripBoxes(a, strip, mesh, at)) n += Volume(ExtentsOf(Intersect(mine, theirs)));
  return n;
}

/// Bytes that this member sends to others for a collective (all_reduce excepted), or to the next one for a ring_shift.
int64_t SentBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  int64_t bytes = 0;
  if (op.kind == OpKind::kRingShift) {
    for (const Transfer& t : PlanTransfer(graph, op, mesh, coordinate).sends)
      bytes += Volume(ExtentsOf(t.box)) * SizeOf(TypeOf(graph, op.inputs[t.tensor]).dtype);
    return bytes;
  }
  const AxisSet axes = op.Axes();
  const int n = mesh.GroupSize(axes), self = mesh.IndexInGroup(axes, coordinate);
  const std::optional<Strip> strip = StripOf(op);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == self) continue;
    const Coordinate there = mesh.GroupMember(axes, coordinate, peer);
    for (size_t t = 0; t < op.inputs.size(); ++t) {
      const Type &from = TypeOf(graph, op.inputs[t]), &to = TypeOf(graph, op.outputs[t]);
      const int64_t common = strip ? CommonVolume(*strip, from, coordinate, to, there, mesh)
                                   : CommonVolume(from, coordinate, to, there, mesh);
      bytes += common * SizeOf(from.dtype);
    }
  }
  return bytes;
}

int64_t LocalBytes(const Graph& graph, const std::vector<int>& values, const Mesh& mesh, const Coordinate& coordinate) {
  int64_t bytes = 0;
  for (int v : values) bytes += LocalVolume(TypeOf(graph, v), mesh, coordinate) * SizeOf(TypeOf(graph, v).dtype);
  return bytes;
}

/// Elements that an all_reduce reduces.
int64_t ReducedElements(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const std::optional<Strip> strip = StripOf(op);
  int64_t elements = 0;
  for (int v : op.outputs) {
    const Type& type = TypeOf(graph, v);
    if (!strip) elements += LocalVolume(type, mesh, coordinate);
    if (strip)
      for (const Box& box : StripBoxes(type, *strip, mesh, coordinate)) elements += Volume(ExtentsOf(box));
  }
  return elements;
}

/// Whole shards to the next member, from the previous one. Boxes are those of this member's own shard.
void PlanShift(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate, TransferPlan& plan) {
  const int n = mesh.GroupSize(plan.axes), self = mesh.IndexInGroup(plan.axes, coordinate);
  const int next = (self + 1) % n, before = (self + n - 1) % n;
  for (size_t t = 0; t < op.inputs.size(); ++t) {
    const Type& type = TypeOf(graph, op.inputs[t]);
    const Box box = LocalBox(type, mesh, coordinate);
    CHECK(ExtentsOf(box) == LocalShape(type, mesh, mesh.GroupMember(plan.axes, coordinate, before)),
          "ring_shift of {}, which is sharded unevenly", ToString(type));
    if (IsEmpty(box)) continue;
    plan.sends.push_back({static_cast<int>(t), next, box});
    plan.receives.push_back({static_cast<int>(t), before, box});
  }
}

}  // namespace

std::string_view Name(Lane lane) {
  constexpr ByLane<std::string_view> kNames = {"compute", "tp",      "cp",       "ep",     "dp",
                                               "pp-send", "pp-recv", "copy-out", "copy-in"};
  return kNames[lane];
}

std::string_view Name(MemoryClass memory_class) {
  constexpr ByMemoryClass<std::string_view> kNames = {"parameters",  "gradients",     "optimizer",
                                                      "activations", "communication", "workspace"};
  return kNames[memory_class];
}

int64_t CopiedBytes(const Program& program, const Instruction& copy) {
  int64_t bytes = 0;
  for (const OperandList& operands : {copy.inputs, copy.outputs})
    for (const Operand& operand : operands)
      if (program.SpaceOf(operand) == Space::kDevice) bytes += operand.bytes;
  return bytes;
}

TransferPlan PlanTransfer(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  TransferPlan plan;
  plan.axes = op.Axes();
  if (op.kind == OpKind::kRingShift) {
    PlanShift(graph, op, mesh, coordinate, plan);
    return plan;
  }
  plan.reduce = op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllReduce;
  if (plan.reduce && !(TypeOf(graph, op.inputs[0]).placements.partial_max & plan.axes).Empty()) plan.how = Reduce::kMax;
  const std::optional<Strip> strip = StripOf(op);
  for (int peer = 0; peer < mesh.GroupSize(plan.axes); ++peer) {
    const Coordinate there = mesh.GroupMember(plan.axes, coordinate, peer);
    for (size_t t = 0; t < op.inputs.size(); ++t) {
      const Type& from = TypeOf(graph, op.inputs[t]);
      const Type& to = TypeOf(graph, op.outputs[t]);
      const auto add = [&](std::vector<Transfer>& list, const Coordinate& sender, const Coordinate& receiver) {
        for (const Box& source : SourceBoxes(from, strip, mesh, sender))
          if (Box box = Intersect(source, LocalBox(to, mesh, receiver)); !IsEmpty(box))
            list.push_back({static_cast<int>(t), peer, std::move(box)});
      };
      add(plan.sends, coordinate, there);
      add(plan.receives, there, coordinate);
    }
  }
  return plan;
}

int64_t WireBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  if (op.kind == OpKind::kSend) return LocalBytes(graph, op.inputs, mesh, coordinate);
  if (op.kind == OpKind::kRecv) return 0;
  if (op.kind != OpKind::kAllReduce) return SentBytes(graph, op, mesh, coordinate);
  const AxisSet axes = op.Axes();
  const int n = mesh.GroupSize(axes), self = mesh.IndexInGroup(axes, coordinate);
  const int64_t elements = ReducedElements(graph, op, mesh, coordinate);
  const int64_t mine = ShardOf({0, elements}, n, self).Extent();
  return (elements - mine + mine * (n - 1)) * SizeOf(TypeOf(graph, op.inputs[0]).dtype);
}

const Operand& Program::Find(std::string_view name, int microbatch) const {
  const int id = graph->Find(name);
  for (const PersistentBuffer& buffer : persistent)
    if (buffer.value == id && buffer.microbatch == microbatch) return buffer.place;
  CHECK(false, "{} (microbatch {}) is not on stage {}", name, microbatch, stage);
}

}  // namespace espalier
