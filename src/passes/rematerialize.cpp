// Gathered parameters are kept for the whole step, or, with zero = 3, gathered again by forward and by backward of
// every layer and microbatch: memory against traffic. The parameters that W reads are gathered in B, for both: usually
// they are adjacent, and where a schedule defers W, a second message would cost more than the memory.
//
// With parallel.regather_group each group of neighbours keeps the parameters for the step, sharded over its ranks. They
// are gathered from the other groups once, and forward and backward gather within the group:
//
//   P  w = reshard(s)                      P  g = reshard(s)       f32[8{regather,dp_shard}] -> f32[8{regather}]
//   F  y = matmul(x, w)             ->     F  w1 = reshard(g)      f32[8{regather}] -> f32[8]
//                                          F  y = matmul(x, w1)
#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/graph/rewriter.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

class Regatherer {
 public:
  explicit Regatherer(Graph& graph) : graph_(graph) {}

  void Run() {
    Rewriter old(graph_);
    for (Op& op : old.ops) {  // those of role P come first
      if (IsKept(op)) {
        kept_[op.outputs[0]] = FromGroup(op);
        continue;
      }
      for (int& input : op.inputs)
        if (const auto it = kept_.find(input); it != kept_.end()) input = Again(it->second, op);
      graph_.ops.push_back(std::move(op));
    }
  }

 private:
  /// A reshard in role P, whose result only microbatch ops read.
  static bool IsKept(const Op& op) { return op.kind == OpKind::kReshard && op.role == Role::kP; }

  /// The gather within the group, after one that brings the parameters of the other groups. Without groups, `kept`.
  Op FromGroup(Op kept) {
    const Value source = graph_.value(kept.inputs[0]);
    Value shared = graph_.value(kept.outputs[0]);
    const int dim = source.type.placements.DimOf(Axis::kRegather);
    if (dim < 0) return kept;
    shared.name = graph_.Unique(shared.name + ".group");
    shared.type.placements.dims[static_cast<size_t>(dim)].push_back(Axis::kRegather);
    const int id = graph_.AddValue(std::move(shared));
    Op gather = kept;
    gather.outputs = {id};
    graph_.ops.push_back(std::move(gather));
    kept.inputs = {id};
    return kept;
  }

  /// One gather for a layer's forward, one for its backward.
  int Again(const Op& kept, const Op& reader) {
    const Role role = reader.role == Role::kF ? Role::kF : Role::kB;
    const auto [it, fresh] = again_.try_emplace({kept.outputs[0], role, reader.layer}, -1);
    if (!fresh) return it->second;
    Value copy = graph_.value(kept.outputs[0]);
    copy.name = graph_.Unique(copy.name + "." + std::string(Name(role)));
    copy.frequency = Frequency::kMicrobatch;
    copy.chunk = reader.chunk;
    it->second = graph_.AddValue(std::move(copy));
    Op gather = kept;
    gather.outputs = {it->second};
    gather.role = role;
    gather.layer = reader.layer;
    gather.chunk = reader.chunk;
    graph_.ops.push_back(std::move(gather));
    return it->second;
  }

  Graph& graph_;
  std::map<int, Op> kept_;                           // by output
  std::map<std::tuple<int, Role, int>, int> again_;  // (kept value, F or B, layer) -> its copy
};

}  // namespace

void Rematerialize(Graph& graph, const PassContext& context) {
  // Role P runs first, so it comes first: then the gathers of a layer can share a message wherever they were.
  std::stable_partition(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.role == Role::kP; });
  graph.Renumber();
  if (GathersAgain(context.deck, context.mesh)) Regatherer(graph).Run();
}

}  // namespace espalier
