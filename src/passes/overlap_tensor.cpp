// Backward communication over tp, and among ranks that share experts, overlaps with weight-gradient matmuls. W ops are
// queued until such a collective of backward has been issued, so that a matmul which does not need its result runs
// between it and its consumer:
//
//   B  dx = matmul(dy, w)                     dx = matmul(dy, w)
//   W  dw = matmul(dy, x)                     s = reduce_scatter(dx)   issued
//   B  s = reduce_scatter(dx)         ->      dw = matmul(dy, x)       runs meanwhile
//   B  dn = rms_norm_grad(s)                  dn = rms_norm_grad(s)    needs it
//
// A collective releases one matmul of its own layer, or everything that the layers above have queued (its own layer may
// have none yet). Collectives of W, which gather activations again, are never queued. The order within B and within
// W does not change, so sums keep their order.
#include <algorithm>
#include <deque>

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

class Overlapper {
 public:
  Overlapper(Graph& graph, const Deck::Overlap& overlap)
      : graph_(graph), tensor_(overlap.tensor), experts_(overlap.experts) {}

  void Run() {
    Rewriter old(graph_);
    for (Op& op : old.ops) {
      if (LeavesBackwardOf(op)) Release(queue_.size());
      if (op.role == Role::kW && !(IsCovered(op) && MayGoFirst(op)))
        queue_.push_back(std::move(op));
      else
        Emit(std::move(op));
    }
    Release(queue_.size());
  }

 private:
  static bool IsBackward(const Op& op) { return op.role == Role::kB || op.role == Role::kW; }
  /// A collective that matmuls of W may cover.
  bool IsCovered(const Op& op) const {
    return (tensor_ && IsTensorCollective(op)) || (experts_ && IsExpertTransfer(graph_, op));
  }
  static bool IsMatmul(const Op& op) { return Define(op.kind).kernel.work.flops != nullptr; }

  bool LeavesBackwardOf(const Op& op) const {
    return !queue_.empty() && (!IsBackward(op) || op.chunk != queue_.front().chunk);
  }
  /// True if no queued op produces an input of this one.
  bool MayGoFirst(const Op& op) const {
    return std::none_of(queue_.begin(), queue_.end(), [&](const Op& w) {
      return std::any_of(op.inputs.begin(), op.inputs.end(),
                         [&](int v) { return std::count(w.outputs.begin(), w.outputs.end(), v) > 0; });
    });
  }

  void Emit(Op op) {
    const bool releases = IsBackward(op) && IsCovered(op);
    const int layer = op.layer;
    graph_.ops.push_back(std::move(op));
    if (releases) ReleaseUnder(layer);
  }
  void ReleaseUnder(int layer) {
    size_t count = 0;
    for (bool matmul = false; count < queue_.size() && (queue_[count].layer != layer || !matmul); ++count)
      matmul = matmul || IsMatmul(queue_[count]);
    Release(count);
  }
  void Release(size_t count) {
    for (; count > 0; --count) {
      graph_.ops.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }

  Graph& graph_;
  const bool tensor_, experts_;
  std::deque<Op> queue_;
};

}  // namespace

void OverlapTensor(Graph& graph, const PassContext& context) {
  const Deck::Overlap& overlap = context.deck.overlap;
  if ((overlap.tensor && context.mesh.Degree(Axis::kTp) > 1) ||
      (overlap.experts && HasExpertLane(context.deck.parallel)))
    Overlapper(graph, overlap).Run();
}

}  // namespace espalier
