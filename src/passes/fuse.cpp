// An addition is fused into an adjacent op as one more operand, so that the intermediate result is not written and read
// again:
//
//   h = add(x, y)                     n, rstd, h = rms_norm(x, w, y)            the residual stream and the next norm
//   n, rstd = rms_norm(h, w)      ->
//
//   d = rms_norm_grad(x, w, rstd, dy)
//   s = add(d, r)                     ->  s = rms_norm_grad(x, w, rstd, dy, r)       and their gradients
//
//   z = matmul(x, w)
//   y = add_bias(z, b)                ->  y = matmul(x, w, b)                        a matmul and its bias
//
// So is the maximum of logits, where no reduction comes between: the logits are read once.
//
//   m = logits_max(x)
//   s, t = logits_sum(x, m, targets)  ->  s, t, m = logits_sum(x, targets)
//
// If nothing else reads the logits of whole rows, their gradient is fused too, since it needs nothing from backward. It
// moves to forward and takes the place of the logits:
//
//   F  s, t, m = logits_sum(x, targets)
//   B  d = cross_entropy_grad(x, m, s, targets)  ->  F  s, t, m, d = cross_entropy(x, targets)
//
// A fused norm rounds where its parts round, so no bit changes; a matmul with a bias is rounded once. The fused op is
// placed where the later part was: nothing may read the result of the earlier part before that. Ops of different chunks
// or roles are not fused, nor are sums of more than two, whose order would change.
#include <algorithm>
#include <map>

#include "espalier/graph/uses.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Number of inputs of an op that an addition may be fused into, before fusion.
using Arity = std::map<OpKind, size_t>;
const Arity kNorms = {{OpKind::kRmsNorm, 2}, {OpKind::kLayerNorm, 3}};
const Arity kNormGrads = {{OpKind::kRmsNormGrad, 4}, {OpKind::kLayerNormGrad, 5}};
const Arity kMatmuls = {{OpKind::kMatmul, 2}};
const Arity kSums = {{OpKind::kLogitsSum, 3}};
const Arity kWholeSums = {{OpKind::kLogitsSum, 2}};

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), uses_(graph) {}

  void Run() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const int at = static_cast<int>(i);
      if (IsPlain(graph_.ops[i], kNorms)) SumIntoNorm(at);
      if (IsSum(graph_.ops[i])) NormGradIntoSum(at);
      if (graph_.ops[i].kind == OpKind::kAddBias) IntoAddition(at, 0, kMatmuls);
      if (IsPlain(graph_.ops[i], kSums)) MaxIntoSum(at);
      if (graph_.ops[i].kind == OpKind::kCrossEntropyGrad) GradientIntoSum(at);
    }
    graph_.Renumber();
  }

 private:
  static bool IsPlain(const Op& op, const Arity& kinds) {
    const auto it = kinds.find(op.kind);
    return it != kinds.end() && op.inputs.size() == it->second;
  }
  static bool IsSum(const Op& op) { return op.kind == OpKind::kAdd && op.inputs.size() == 2; }
  const Type& TypeOf(int value) const { return graph_.value(value).type; }
  bool HaveOneType(const Op& sum) const {
    return TypeOf(sum.inputs[0]) == TypeOf(sum.outputs[0]) && TypeOf(sum.inputs[1]) == TypeOf(sum.outputs[0]);
  }

  /// The producer of a value, if it may be fused with `op`: same role and chunk, and no op reads the value before `op`.
  Op* Neighbour(int value, int op) {
    const int producer = graph_.value(value).producer;
    if (producer < 0 || uses_.FirstReader(value) != op) return nullptr;
    Op &earlier = graph_.op(producer), &later = graph_.op(op);
    return earlier.role == later.role && earlier.chunk == later.chunk ? &earlier : nullptr;
  }

  void SumIntoNorm(int at) {
    Op& norm = graph_.op(at);
    Op* sum = Neighbour(norm.inputs[0], at);
    if (sum == nullptr || !IsSum(*sum) || !HaveOneType(*sum)) return;
    norm.inputs[0] = sum->inputs[0];
    norm.inputs.push_back(sum->inputs[1]);
    norm.outputs.push_back(sum->outputs[0]);
    *sum = {};
  }

  void MaxIntoSum(int at) {
    Op& sum = graph_.op(at);
    Op* max = Neighbour(sum.inputs[1], at);
    if (max == nullptr || max->kind != OpKind::kLogitsMax) return;
    sum.inputs.erase(sum.inputs.begin() + 1);
    sum.outputs.push_back(max->outputs[0]);
    *max = {};
  }

  /// After the sum and its maximum only this gradient may read the logits.
  void GradientIntoSum(int at) {
    Op& gradient = graph_.op(at);
    const int logits = gradient.inputs[0], producer = graph_.value(gradient.inputs[2]).producer;
    if (producer < 0 || !IsPlain(graph_.op(producer), kWholeSums)) return;
    Op& sum = graph_.op(producer);
    const bool of_one = sum.inputs[0] == logits && sum.inputs[1] == gradient.inputs[3] && sum.chunk == gradient.chunk;
    if (!of_one || gradient.inputs[1] != sum.outputs[2] || uses_.Readers(logits).back() != at) return;
    sum.kind = OpKind::kCrossEntropy;
    sum.outputs.push_back(gradient.outputs[0]);
    gradient = {};
  }

  void NormGradIntoSum(int at) {
    if (HaveOneType(graph_.op(at)) && !IntoAddition(at, 0, kNormGrads)) IntoAddition(at, 1, kNormGrads);
  }

  /// Fuses an addition of two into the producer of its term `term`, if no other op reads that term. The fused op is
  /// placed where the addition was.
  bool IntoAddition(int at, size_t term, const Arity& kinds) {
    Op& addition = graph_.op(at);
    Op* producer = Neighbour(addition.inputs[term], at);
    if (producer == nullptr || !IsPlain(*producer, kinds) || uses_.Readers(addition.inputs[term]).size() > 1)
      return false;
    producer->inputs.push_back(addition.inputs[1 - term]);
    producer->outputs = addition.outputs;
    addition = std::move(*producer);
    *producer = {};
    return true;
  }

  Graph& graph_;
  const Uses uses_;
};

}  // namespace

void Fuse(Graph& graph, const PassContext&) { Fuser(graph).Run(); }

}  // namespace espalier
