// Messages and bytes of a program, by lane, group, op kind and role.
#include <map>
#include <tuple>

#include "espalier/graph/signature.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

/// Bytes of an op that occurs as `instruction`. A gather of scalars sends the scalars of its own stage.
int64_t BytesOf(const Program& program, const Instruction& instruction, const Op& op, const Coordinate& coordinate) {
  if (op.kind == OpKind::kGatherStages)
    return std::ssize(instruction.inputs) * 4 * (program.mesh.GroupSize(op.Axes()) - 1);
  return WireBytes(*program.graph, op, program.mesh, coordinate);
}

}  // namespace

std::vector<MessageRow> ListMessages(const Program& program, const Coordinate& coordinate) {
  const Graph& graph = *program.graph;
  std::vector<int64_t> count_of(graph.ops.size(), 0);
  std::vector<size_t> example(graph.ops.size(), 0);  // an instruction
  for (size_t k = 0; k < program.instructions.size(); ++k) {
    const Instruction i = program.instructions[k];
    if (!IsMessageLane(i.lane) || i.lane == Lane::kPpRecv) continue;
    ++count_of[i.op];
    example[i.op] = k;
  }
  Signatures signatures;
  signatures.Read(graph);
  std::map<int, int64_t> bytes_of;  // by signature: all layers of a model have the same few messages
  std::map<std::tuple<Lane, AxisSet, std::string_view, Role>, MessageCount> rows;
  for (size_t id = 0; id < count_of.size(); ++id) {
    if (count_of[id] == 0) continue;
    const Op& op = graph.ops[id];
    const Instruction instruction = program.instructions[example[id]];
    const auto [it, fresh] = bytes_of.try_emplace(signatures.Of(op), 0);
    if (fresh || op.kind == OpKind::kGatherStages) it->second = BytesOf(program, instruction, op, coordinate);
    MessageCount& total =
        rows[{instruction.lane, op.kind == OpKind::kSend ? AxisSet{Axis::kPp} : op.Axes(), Name(op.kind), op.role}];
    total.count += count_of[id];
    total.bytes += count_of[id] * it->second;
  }
  std::vector<MessageRow> list;
  for (const auto& [key, count] : rows) {
    const auto& [lane, group, kind, role] = key;
    list.push_back({lane, group, OpKindOf(kind), role, count});
  }
  return list;
}

std::vector<std::pair<std::string, MessageCount>> CountMessages(const Program& program, const Coordinate& coordinate) {
  ByLane<MessageCount> counts{};
  for (const MessageRow& row : ListMessages(program, coordinate)) {
    counts[row.lane].count += row.total.count;
    counts[row.lane].bytes += row.total.bytes;
  }
  std::vector<std::pair<std::string, MessageCount>> named;
  for (Lane lane : kLanes)
    if (counts[lane].count > 0) named.emplace_back(Name(lane), counts[lane]);
  return named;
}

}  // namespace espalier
