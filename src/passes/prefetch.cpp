// Parameters are gathered `overlap.prefetch` layers before they are used, so that their messages overlap with the
// matmuls of those layers: a gather moves before the first op of an earlier layer of its chunk and role. Gathers of
// nearer layers stay before gathers of farther ones.
#include <algorithm>
#include <map>
#include <set>

#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

class Prefetcher {
 public:
  Prefetcher(Graph& graph, size_t ahead) : graph_(graph), ahead_(ahead) {}

  void Run() {
    Rewriter old(graph_);
    std::vector<Op>& ops = old.ops;
    std::vector<bool> moves(ops.size());
    for (size_t i = 0; i < ops.size(); ++i) moves[i] = IsParameterGather(ops[i]);
    FindLayers(ops);
    std::map<size_t, std::vector<Op>> moved_to;  // by op: what moves there
    for (size_t i = 0; i < ops.size(); ++i)
      if (moves[i]) moved_to[TargetOf(ops[i])].push_back(ops[i]);
    for (size_t i = 0; i < ops.size(); ++i) {
      for (Op& op : moved_to[i]) graph_.ops.push_back(std::move(op));
      if (!moves[i]) graph_.ops.push_back(std::move(ops[i]));
    }
  }

 private:
  /// A gather of parameters, or a further step of one. All tensors of a message are of one frequency.
  bool IsParameterGather(const Op& op) {
    const auto gathered = [&](int v) { return gathered_.contains(v); };
    const bool ready =
        GathersParameters(graph_, op) || (IsReshard(op.kind) && std::ranges::any_of(op.inputs, gathered));
    if (ready) gathered_.insert(op.outputs.begin(), op.outputs.end());
    return ready;
  }

  /// The layers of a chunk in one role.
  struct Layers {
    std::vector<size_t> starts;      // the first op of each, in program order
    std::map<int, size_t> position;  // by layer: index in `starts`
  };
  using Segment = std::pair<int, Role>;

  void FindLayers(const std::vector<Op>& ops) {
    for (size_t i = 0; i < ops.size(); ++i) {
      Layers& layers = layers_[{ops[i].chunk, ops[i].role}];
      if (layers.position.try_emplace(ops[i].layer, layers.starts.size()).second) layers.starts.push_back(i);
    }
  }
  size_t TargetOf(const Op& gather) const {
    const Layers& layers = layers_.at({gather.chunk, gather.role});
    const size_t own = layers.position.at(gather.layer);
    return layers.starts[own - std::min(own, ahead_)];
  }

  Graph& graph_;
  const size_t ahead_;
  std::set<int> gathered_;
  std::map<Segment, Layers> layers_;
};

}  // namespace

void Prefetch(Graph& graph, const PassContext& context) {
  const int ahead = context.deck.overlap.prefetch;
  if (ahead > 0) Prefetcher(graph, ahead).Run();
}

}  // namespace espalier
