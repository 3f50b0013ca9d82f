#include "espalier/costs/costs.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

int64_t LocalBytes(const std::vector<int>& values, const Program& program, const Coordinate& coordinate) {
  int64_t bytes = 0;
  for (int v : values) {
    const Type& type = program.graph->value(v).type;
    bytes += Volume(LocalShape(type, program.mesh, coordinate)) * SizeOf(type.dtype);
  }
  return bytes;
}

TransferKey KeyOfMessage(const Program& program, const Op& op, const Coordinate& coordinate, int ranks_per_node) {
  Coordinate there = coordinate;
  there[Axis::kPp] = op.Peer();
  const bool same = program.mesh.RankOf(coordinate) / ranks_per_node == program.mesh.RankOf(there) / ranks_per_node;
  const std::vector<int>& values = op.kind == OpKind::kSend ? op.inputs : op.outputs;
  return {{OpKind::kSend, {2, same ? 1 : 2, same ? 2 : 1}}, LocalBytes(values, program, coordinate)};
}

}  // namespace

TransferKey KeyOfTransfer(const Program& program, const Instruction& instruction, const Coordinate& coordinate,
                          int ranks_per_node) {
  const Op& op = program.graph->op(instruction.op);
  CHECK(IsCommunication(op.kind), "{} is no transfer", op.kind);
  if (IsBetweenStages(op.kind)) return KeyOfMessage(program, op, coordinate, ranks_per_node);
  const GroupPlace place = PlaceOf(program.mesh, op.Axes(), coordinate, ranks_per_node);
  // The bytes that a stage gathers depend on the stage: it sends its own scalars to each other one.
  const int64_t bytes = op.kind == OpKind::kGatherStages
                            ? std::ssize(instruction.inputs) * SizeOf(Dtype::kF32) * (place.ranks - 1)
                            : WireBytes(*program.graph, op, program.mesh, coordinate);
  return {{op.kind, place}, bytes};
}

}  // namespace espalier
