#include "trace.hpp"

#include <unordered_map>

namespace espalier {

size_t HashOf(const std::vector<Event>& events) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, an event at a time
  for (const Event& e : events)
    hash = (hash ^ (static_cast<uint64_t>(e.op) << 32 ^ static_cast<uint32_t>(e.microbatch))) * 0x100000001b3u;
  return hash;
}

const std::vector<OpTraits>& TraceReader::TraitsOf(const Graph& graph) {
  const auto [it, fresh] = traits_.try_emplace(&graph);
  if (!fresh) return it->second;
  it->second.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    OpTraits traits{op.kind, {}, -1};
    if (IsBetweenStages(op.kind))
      traits.peer = op.Peer();
    else if (IsCommunication(op.kind))
      traits.axes = op.Axes();
    it->second.push_back(traits);
  }
  return it->second;
}

Trace TraceReader::Read(const Program& program) {
  Trace trace;
  trace.traits = &TraitsOf(*program.graph);
  const bool issues = program.device == DeviceKind::kCuda;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    trace.lanes[instruction.lane].push_back(static_cast<int>(i));
    if (!IsMessageLane(instruction.lane)) continue;
    const OpTraits& op = (*trace.traits)[instruction.op];
    const Event event{instruction.op, instruction.microbatch, static_cast<int>(i)};
    if (issues) trace.issued.push_back(event);
    if (instruction.lane == Lane::kPpSend)
      trace.sends[op.peer].push_back(event);
    else if (instruction.lane == Lane::kPpRecv)
      trace.receives[op.peer].push_back(event);
    else
      trace.collectives[{instruction.lane, op.axes}].push_back(event);
  }
  return trace;
}

RankClasses ClassesOf(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of) {
  RankClasses classes;
  std::unordered_map<const Program*, int> known;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Program* program = &program_of(rank);
    const auto [it, fresh] = known.try_emplace(program, static_cast<int>(classes.programs.size()));
    if (fresh) classes.programs.push_back(program);
    classes.of_rank.push_back(it->second);
  }
  return classes;
}

FirstMembers::FirstMembers(const Mesh& mesh, AxisSet axes) {
  int stride = 1;
  for (auto a = kAxesOfRanks.rbegin(); a != kAxesOfRanks.rend(); ++a) {
    if (axes.Has(*a) && mesh.Degree(*a) > 1) axes_.emplace_back(stride, mesh.Degree(*a));
    stride *= mesh.Degree(*a);
  }
}

}  // namespace espalier
