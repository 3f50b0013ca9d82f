// Gathered parameters are kept for the step, or gathered again by every use's role (forward, backward): memory against traffic.
// `auto` keeps them under pipelines, where each microbatch would gather anew. Only zero = 3 may gather again.
#include <algorithm>
#include <map>

#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

bool GathersAgain(const PassContext& context) {
  const std::string& regather = context.deck.recompute.regather;
  return context.deck.parallel.zero == 3 &&
         (regather == "always" || (regather == "auto" && context.mesh.Degree(Axis::kPp) == 1));
}

/// A reshard in role P whose result only microbatch ops read.
bool IsKeptGather(const Op& op) { return op.kind == "reshard" && op.role == Role::kP; }

}  // namespace

void Rematerialize(Graph& graph, const PassContext& context) {
  if (!GathersAgain(context)) return;
  std::vector<Op> gathers, rest;
  for (Op& op : graph.ops) (IsKeptGather(op) ? gathers : rest).push_back(std::move(op));
  std::vector<Op> ops;
  std::map<std::pair<int, Role>, int> again;  // (kept value, role) -> its copy
  for (Op& op : rest) {
    for (int& input : op.inputs) {
      const auto gather = std::find_if(gathers.begin(), gathers.end(), [&](const Op& g) { return g.outputs[0] == input; });
      if (gather == gathers.end()) continue;
      const auto [it, fresh] = again.try_emplace({input, op.role}, -1);
      if (fresh) {
        Value copy = graph.values[static_cast<size_t>(input)];
        copy.name = graph.Unique(copy.name + "." + std::string(Name(op.role)));
        copy.frequency = Frequency::kMicrobatch;
        it->second = graph.AddValue(std::move(copy));
        Op regather = *gather;
        regather.outputs = {it->second};
        regather.role = op.role;
        regather.layer = op.layer;
        ops.push_back(std::move(regather));
      }
      input = it->second;
    }
    ops.push_back(std::move(op));
  }
  graph.ops = std::move(ops);
  graph.Renumber();
}

}  // namespace espalier
