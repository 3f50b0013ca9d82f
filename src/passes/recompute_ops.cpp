// A norm, attention, an activation function, the router's choice and the rows of experts are known by their kind. The
// matmuls before them, with their biases, rotations and reshards, belong to what reads them:
//
//   norm            n = rms_norm(x)
//   qkv             q = rope(matmul(n, wq)), k = rope(matmul(n, wk)), v = matmul(n, wv)
//   core_attention  o = attention(q, k, v)
//                   y = add(x, matmul(o, wo))             the stream: recomputed with whole layers only
//   mlp             gate = matmul(m, wg), up = matmul(m, wu)
//   activation      h = swiglu(gate, up)
//   router          weights, chosen = route(matmul(m, wr))
//   rows            rows, .. = dispatch(m, chosen, weights)
//   experts         gate = grouped_matmul(rows, wg), up = grouped_matmul(rows, wu)
#include "espalier/passes/recompute_ops.hpp"

#include <algorithm>

namespace espalier {
namespace {

std::optional<RecomputeOp> ByKind(OpKind kind) {
  switch (kind) {
    case OpKind::kRmsNorm:
    case OpKind::kLayerNorm:
    case OpKind::kRowNorm:
      return RecomputeOp::kNorm;
    case OpKind::kAttention:
    case OpKind::kAttentionMerge:
    case OpKind::kAttentionSink:
      return RecomputeOp::kCoreAttention;
    case OpKind::kSwiglu:
    case OpKind::kGelu:
    case OpKind::kWeightedSwiglu:
      return RecomputeOp::kActivation;
    case OpKind::kRoute:
      return RecomputeOp::kRouter;
    case OpKind::kDispatch:
      return RecomputeOp::kRows;
    default:
      return std::nullopt;
  }
}

/// The name of a matmul, and of what follows it, whose result is read by an op of this name.
std::optional<RecomputeOp> BeforeOp(RecomputeOp reader) {
  switch (reader) {
    case RecomputeOp::kCoreAttention:
      return RecomputeOp::kQkv;
    case RecomputeOp::kActivation:
      return RecomputeOp::kMlp;
    case RecomputeOp::kRouter:
      return RecomputeOp::kRouter;
    default:
      return std::nullopt;
  }
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), names_(graph.ops.size()), before_(graph.values.size()) {}

  std::vector<std::optional<RecomputeOp>> Run() && {
    for (size_t i = graph_.ops.size(); i-- > 0;)
      if (graph_.ops[i].role == Role::kF) Visit(static_cast<int>(i));
    return std::move(names_);
  }

 private:
  void Visit(int i) {
    const Op& op = graph_.op(i);
    const auto own = ByKind(op.kind);
    names_[static_cast<size_t>(i)] = own;
    if (own && *own != RecomputeOp::kNorm) return Pass(op, BeforeOp(*own));
    for (int output : op.outputs)
      if (const auto name = before_[static_cast<size_t>(output)]) return VisitMaker(i, *name);
  }
  /// An op whose result an op of another name reads, itself or through other such ops. A norm among them (of queries
  /// and keys, or of a latent) keeps its name.
  void VisitMaker(int i, RecomputeOp name) {
    const Op& op = graph_.op(i);
    std::optional<RecomputeOp>& mine = names_[static_cast<size_t>(i)];
    if (op.kind == OpKind::kGroupedMatmul || op.kind == OpKind::kAddRowBias) {
      mine = RecomputeOp::kExperts;
    } else if (!MovesOn(op.kind)) {
      return;
    } else if (!mine) {
      mine = name;
    }
    Pass(op, name);
  }
  /// Ops between a norm of the stream and what reads its matmuls.
  static bool MovesOn(OpKind kind) {
    switch (kind) {
      case OpKind::kMatmul:
      case OpKind::kAddBias:
      case OpKind::kRope:
      case OpKind::kLatentKeys:
      case OpKind::kRowSquares:
      case OpKind::kRowNorm:
      case OpKind::kRmsNorm:
      case OpKind::kRingShift:
      case OpKind::kReshard:
        return true;
      default:
        return false;
    }
  }
  void Pass(const Op& op, std::optional<RecomputeOp> name) {
    if (!name) return;
    for (int input : op.inputs) {
      const int maker = graph_.value(input).producer;
      if (maker >= 0 && graph_.op(maker).layer == op.layer) before_[static_cast<size_t>(input)] = name;
    }
  }

  const Graph& graph_;
  std::vector<std::optional<RecomputeOp>> names_;   // by op
  std::vector<std::optional<RecomputeOp>> before_;  // by value: an op of this name reads what becomes of it
};

}  // namespace

std::vector<std::optional<RecomputeOp>> RecomputeOpsOf(const Graph& graph) { return Finder(graph).Run(); }

}  // namespace espalier
