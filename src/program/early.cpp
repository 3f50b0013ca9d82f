#include "early.hpp"

#include <algorithm>

#include "espalier/graph/provenance.hpp"

namespace espalier {
namespace {

/// How a value of role S came to be.
struct Origin {
  bool gradient = false;       // an accumulator of gradients, or made of some
  bool ready = false;          // final as soon as backward has made its part: an accumulator, or made by an early op
  Lane lane = Lane::kCompute;  // that made it
};

class EarlyFinder {
 public:
  EarlyFinder(const Graph& graph, const GraphFacts& facts)
      : graph_(graph), facts_(facts), origins_(graph.values.size()), early_(graph.ops.size()) {}

  std::vector<bool> Run() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (op.frequency() == Frequency::kMicrobatch)
        NoteAccumulators(op, facts_.ops[i].lane);
      else if (op.role == Role::kS && (IsReshard(op.kind) || op.kind == OpKind::kCast))
        Decide(op, i);
    }
    DropUnread();
    return early_;
  }

 private:
  void NoteAccumulators(const Op& op, Lane lane) {
    for (int output : op.outputs)
      if (graph_.value(output).kind == ValueKind::kAccumulator)
        origins_[output] = {IsGradientOfWeight(graph_.value(output)), true, lane};
  }
  void Decide(const Op& op, size_t i) {
    if (IsBetweenStages(op.kind) || op.kind == OpKind::kGatherStages) return;
    const Lane lane = facts_.ops[i].lane;
    const auto ready = [&](int v) {
      return origins_[v].ready && (origins_[v].lane == Lane::kCompute || origins_[v].lane == lane);
    };
    early_[i] = std::all_of(op.inputs.begin(), op.inputs.end(), ready) &&
                std::any_of(op.inputs.begin(), op.inputs.end(), [&](int v) { return origins_[v].gradient; });
    if (!early_[i]) return;
    for (int output : op.outputs) origins_[output] = {true, true, lane};
  }
  /// Local ops whose results no early communication needs.
  void DropUnread() {
    std::vector<bool> read(graph_.values.size());
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      if (!early_[i]) continue;
      const Op& op = graph_.ops[i];
      early_[i] =
          IsCommunication(op.kind) || std::any_of(op.outputs.begin(), op.outputs.end(), [&](int v) { return read[v]; });
      if (!early_[i]) continue;
      for (int v : op.inputs) read[v] = true;
    }
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  std::vector<Origin> origins_;  // by value
  std::vector<bool> early_;      // by op
};

}  // namespace

EarlyOps::EarlyOps(const Graph& graph, const GraphFacts& facts, bool enabled)
    : inputs(graph.ops.size()), readers(graph.values.size()) {
  if (!enabled) return;
  const std::vector<bool> early = EarlyFinder(graph, facts).Run();
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!early[i]) continue;
    inputs[i] = static_cast<int>(graph.ops[i].inputs.size());
    for (int v : graph.ops[i].inputs) readers[v].push_back(static_cast<int>(i));
  }
}

}  // namespace espalier
