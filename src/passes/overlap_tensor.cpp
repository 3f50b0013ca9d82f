// Backward tp communication under weight-gradient products. W ops wait in line until a tp collective of backward has
// been issued, so that a product which does not need it stands between it and its consumer:
//
//   B  dx = matmul(dy, w)                     dx = matmul(dy, w)
//   W  dw = matmul(dy, x)                     s = reduce_scatter(dx)   issued
//   B  s = reduce_scatter(dx)         ->      dw = matmul(dy, x)       runs meanwhile
//   B  dn = rms_norm_grad(s)                  dn = rms_norm_grad(s)    needs it
//
// A collective releases one product of its own layer, or all that the layers above have left over (its layer may have
// none yet). tp collectives of W, which bring activations back, never wait. Order among B and among W stays, so sums
// are made as before.
#include <algorithm>
#include <deque>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

constexpr std::string_view kCollectives[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"};

class Overlapper {
 public:
  explicit Overlapper(Graph& graph) : graph_(graph) {}

  void Run() {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (Op& op : ops) {
      if (LeavesBackwardOf(op)) Release(waiting_.size());
      if (op.role == Role::kW && !(IsTensorCollective(op) && MayGoFirst(op)))
        waiting_.push_back(std::move(op));
      else
        Emit(std::move(op));
    }
    Release(waiting_.size());
    graph_.Renumber();
  }

 private:
  static bool IsBackward(const Op& op) { return op.role == Role::kB || op.role == Role::kW; }
  static bool IsTensorCollective(const Op& op) {
    return std::find(std::begin(kCollectives), std::end(kCollectives), op.kind) != std::end(kCollectives) &&
           (AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes"))) - kTensorAxes).Empty();
  }
  static bool IsProduct(const Op& op) { return Define(op.kind).flops != nullptr; }

  bool LeavesBackwardOf(const Op& op) const {
    return !waiting_.empty() && (!IsBackward(op) || op.chunk != waiting_.front().chunk);
  }
  /// True if no op that waits makes what this one reads.
  bool MayGoFirst(const Op& op) const {
    return std::none_of(waiting_.begin(), waiting_.end(), [&](const Op& w) {
      return std::any_of(op.inputs.begin(), op.inputs.end(),
                         [&](int v) { return std::count(w.outputs.begin(), w.outputs.end(), v) > 0; });
    });
  }

  void Emit(Op op) {
    const bool releases = IsBackward(op) && IsTensorCollective(op);
    const int layer = op.layer;
    graph_.ops.push_back(std::move(op));
    if (releases) ReleaseUnder(layer);
  }
  void ReleaseUnder(int layer) {
    size_t count = 0;
    for (bool product = false; count < waiting_.size() && (waiting_[count].layer != layer || !product); ++count)
      product = product || IsProduct(waiting_[count]);
    Release(count);
  }
  void Release(size_t count) {
    for (; count > 0; --count) {
      graph_.ops.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }

  Graph& graph_;
  std::deque<Op> waiting_;
};

}  // namespace

void OverlapTensor(Graph& graph, const PassContext& context) {
  if (context.deck.overlap.tensor && context.mesh.Degree(Axis::kTp) > 1) Overlapper(graph).Run();
}

}  // namespace espalier
