// What each member of a communication op sends and receives, from the types alone: piece S of a member meets piece D of
// another.
#include <algorithm>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "transfer_text.hpp"

namespace espalier {
namespace {

AxisSet GroupAxes(const Op& op) { return AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes"))); }

const Type& TypeOf(const Graph& graph, int value) { return graph.values[static_cast<size_t>(value)].type; }

int64_t BoxBytes(const Graph& graph, const Op& op, const Transfer& t) {
  return Volume(ExtentsOf(t.box)) * SizeOf(TypeOf(graph, op.inputs[static_cast<size_t>(t.tensor)]).dtype);
}

/// Bytes to (or from) each peer but oneself.
std::vector<int64_t> BytesByPeer(const Graph& graph, const Op& op, const std::vector<Transfer>& transfers, int peers,
                                 int self) {
  std::vector<int64_t> bytes(static_cast<size_t>(peers), 0);
  for (const Transfer& t : transfers)
    if (t.peer != self) bytes[static_cast<size_t>(t.peer)] += BoxBytes(graph, op, t);
  return bytes;
}

int64_t LocalBytes(const Graph& graph, const std::vector<int>& values, const Mesh& mesh, const Coordinate& coordinate) {
  int64_t bytes = 0;
  for (int v : values) bytes += Volume(LocalShape(TypeOf(graph, v), mesh, coordinate)) * SizeOf(TypeOf(graph, v).dtype);
  return bytes;
}

int64_t LocalElements(const Graph& graph, const std::vector<int>& values, const Mesh& mesh,
                      const Coordinate& coordinate) {
  int64_t elements = 0;
  for (int v : values) elements += Volume(LocalShape(TypeOf(graph, v), mesh, coordinate));
  return elements;
}

/// Whole pieces to the next member, from the one before. A message names pieces by where they lie on this member.
void PlanShift(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate, TransferPlan& plan) {
  const int n = mesh.GroupSize(plan.axes), self = mesh.IndexInGroup(plan.axes, coordinate);
  const int next = (self + 1) % n, before = (self + n - 1) % n;
  for (size_t t = 0; t < op.inputs.size(); ++t) {
    const Type& type = TypeOf(graph, op.inputs[t]);
    const Box box = LocalBox(type, mesh, coordinate);
    CHECK(ExtentsOf(box) == LocalShape(type, mesh, mesh.GroupMember(plan.axes, coordinate, before)),
          "ring_shift of {}, which is cut unevenly", ToString(type));
    if (IsEmpty(box)) continue;
    plan.sends.push_back({static_cast<int>(t), next, box});
    plan.receives.push_back({static_cast<int>(t), before, box});
  }
}

}  // namespace

std::string_view Name(Lane lane) {
  constexpr std::array<std::string_view, kLaneCount> kNames = {"compute", "tp",      "cp",  "dp",
                                                               "pp-send", "pp-recv", "copy"};
  return kNames[static_cast<size_t>(lane)];
}

std::string_view Name(MemoryClass memory_class) {
  constexpr std::array<std::string_view, kMemoryClassCount> kNames = {"parameters",  "gradients",     "optimizer",
                                                                      "activations", "communication", "workspace"};
  return kNames[static_cast<size_t>(memory_class)];
}

bool IsCommunication(std::string_view kind) {
  return kind == "all_gather" || kind == "reduce_scatter" || kind == "all_reduce" || kind == "all_to_all" ||
         kind == "ring_shift" || kind == "send" || kind == "recv" || kind == "gather_stages";
}

TransferPlan PlanTransfer(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  TransferPlan plan;
  plan.axes = GroupAxes(op);
  if (op.kind == "ring_shift") {
    PlanShift(graph, op, mesh, coordinate, plan);
    return plan;
  }
  plan.reduce = op.kind == "reduce_scatter" || op.kind == "all_reduce";
  if (plan.reduce && !(TypeOf(graph, op.inputs[0]).placements.partial_max & plan.axes).Empty()) plan.how = Reduce::kMax;
  for (int peer = 0; peer < mesh.GroupSize(plan.axes); ++peer) {
    const Coordinate there = mesh.GroupMember(plan.axes, coordinate, peer);
    for (size_t t = 0; t < op.inputs.size(); ++t) {
      const Type& from = TypeOf(graph, op.inputs[t]);
      const Type& to = TypeOf(graph, op.outputs[t]);
      Box out = Intersect(LocalBox(from, mesh, coordinate), LocalBox(to, mesh, there));
      Box in = Intersect(LocalBox(from, mesh, there), LocalBox(to, mesh, coordinate));
      if (!IsEmpty(out)) plan.sends.push_back({static_cast<int>(t), peer, std::move(out)});
      if (!IsEmpty(in)) plan.receives.push_back({static_cast<int>(t), peer, std::move(in)});
    }
  }
  return plan;
}

std::string TransferText(const Graph& graph, const Op& op) {
  std::string text = op.kind;
  for (const auto& [name, number] : op.attributes.numbers) text += fmt::format(" {}={}", name, number);
  for (int v : op.inputs) text += " " + ToString(TypeOf(graph, v));
  text += " to";
  for (int v : op.outputs) text += " " + ToString(TypeOf(graph, v));
  return text;
}

int64_t WireBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  if (op.kind == "send") return LocalBytes(graph, op.inputs, mesh, coordinate);
  if (op.kind == "recv") return 0;
  const AxisSet axes = GroupAxes(op);
  const int n = mesh.GroupSize(axes), self = mesh.IndexInGroup(axes, coordinate);
  if (op.kind == "all_reduce") {
    const int64_t elements = LocalElements(graph, op.outputs, mesh, coordinate);
    const int64_t mine = PieceOf({0, elements}, n, self).Extent();
    return (elements - mine + mine * (n - 1)) * SizeOf(TypeOf(graph, op.inputs[0]).dtype);
  }
  const TransferPlan plan = PlanTransfer(graph, op, mesh, coordinate);
  int64_t bytes = 0;
  for (int64_t b : BytesByPeer(graph, op, plan.sends, n, self)) bytes += b;
  return bytes;
}

int64_t CommWorkspaceBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  // Point-to-point: one message that holds all tensors, packed unless there is one only.
  if (op.kind == "send") return op.inputs.size() < 2 ? 0 : Aligned(LocalBytes(graph, op.inputs, mesh, coordinate));
  if (op.kind == "recv") return op.outputs.size() < 2 ? 0 : Aligned(LocalBytes(graph, op.outputs, mesh, coordinate));
  const AxisSet axes = GroupAxes(op);
  const int n = mesh.GroupSize(axes), self = mesh.IndexInGroup(axes, coordinate);
  // Scalars: all of them from every stage, and one's own.
  if (op.kind == "gather_stages") return (n + 1) * Aligned(static_cast<int64_t>(op.outputs.size()) * 4);
  if (op.kind == "all_reduce") {
    // The flat tensors (packed, then the joined pieces), and one piece from each member.
    const int64_t elements = LocalElements(graph, op.outputs, mesh, coordinate);
    const int64_t size = SizeOf(TypeOf(graph, op.inputs[0]).dtype);
    const int64_t piece = PieceOf({0, elements}, n, 0).Extent();
    return Aligned(elements * size) + n * Aligned(piece * size);
  }
  const TransferPlan plan = PlanTransfer(graph, op, mesh, coordinate);
  int64_t bytes = 0;
  for (int64_t b : BytesByPeer(graph, op, plan.sends, n, self)) bytes += Aligned(b);
  for (int64_t b : BytesByPeer(graph, op, plan.receives, n, self)) bytes += Aligned(b);
  return bytes;
}

const Operand& Program::Find(std::string_view name, int microbatch) const {
  const int id = graph->Find(name);
  for (const PersistentBuffer& buffer : persistent)
    if (buffer.value == id && buffer.microbatch == microbatch) return buffer.place;
  CHECK(false, "{} (microbatch {}) is not on stage {}", name, microbatch, stage);
}

}  // namespace espalier
