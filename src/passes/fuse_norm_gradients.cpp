// The gradients of a norm in one op: both read x and dy, which are large, and a pass over their rows makes dx and adds
// up dw on the way. The weight gradient is tiny, so it moves to role B, also where the schedule defers W:
//
//   B  dx = rms_norm_grad(x, w, rstd, dy, r)
//   W  dw += rms_norm_weight_grad(x, rstd, dy)   ->   B  dx, dw += rms_norm_backward(x, w, rstd, dy, r)
//
// Sums keep their order, so no bit changes. The op is where the earlier of the two was if all it reads is made by then,
// else where the gradient of x was, if nothing has read dw before. Gradients in strips stay apart (tensor_strips).
#include <algorithm>
#include <map>
#include <vector>

#include "espalier/graph/uses.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// The inputs of a norm's input gradient that its weight gradient reads too, by index.
struct Pair {
  OpKind weight, both;
  std::vector<size_t> shared;
};
const std::map<OpKind, Pair> kPairs = {
    {OpKind::kRmsNormGrad, {OpKind::kRmsNormWeightGrad, OpKind::kRmsNormBackward, {0, 2, 3}}},
    {OpKind::kLayerNormGrad, {OpKind::kLayerNormWeightGrad, OpKind::kLayerNormBackward, {0, 2, 3, 4}}},
};

class NormFuser {
 public:
  explicit NormFuser(Graph& graph) : graph_(graph), uses_(graph) {
    for (size_t i = graph.ops.size(); i-- > 0;)
      if (IsWeightGradient(graph.ops[i].kind)) weights_[graph.ops[i].inputs] = i;
  }

  void Run() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) Fuse(i);
    graph_.Renumber();
  }

 private:
  static bool IsWeightGradient(OpKind kind) {
    return std::ranges::any_of(kPairs, [&](const auto& pair) { return pair.second.weight == kind; });
  }

  void Fuse(size_t at) {
    const auto pair = kPairs.find(graph_.ops[at].kind);
    if (pair == kPairs.end() || StripOf(graph_.ops[at])) return;
    std::vector<int> shared;
    for (size_t i : pair->second.shared) shared.push_back(graph_.ops[at].inputs[i]);
    const auto found = weights_.find(shared);
    if (found == weights_.end()) return;
    const size_t weight = found->second, place = PlaceOf(at, weight);
    if (graph_.ops[weight].kind != pair->second.weight || graph_.ops[weight].chunk != graph_.ops[at].chunk ||
        place == graph_.ops.size())
      return;
    Op both = std::move(graph_.ops[at]);
    both.kind = pair->second.both;
    both.outputs.insert(both.outputs.end(), graph_.ops[weight].outputs.begin(), graph_.ops[weight].outputs.end());
    graph_.ops[at] = graph_.ops[weight] = {};
    graph_.ops[place] = std::move(both);
  }

  /// Where both gradients can be made; the end if nowhere.
  size_t PlaceOf(size_t input, size_t weight) const {
    if (input < weight) return input;
    const Op& op = graph_.ops[input];
    const auto made = [&](int v) { return graph_.value(v).producer < static_cast<int>(weight); };
    if (std::ranges::all_of(op.inputs, made)) return weight;
    const auto read_later = [&](int v) { return uses_.FirstReader(v) > static_cast<int>(input); };
    return std::ranges::all_of(graph_.ops[weight].outputs, read_later) ? input : graph_.ops.size();
  }

  Graph& graph_;
  const Uses uses_;
  std::map<std::vector<int>, size_t> weights_;  // by inputs: the op that makes a weight gradient of them
};

}  // namespace

void FuseNormGradients(Graph& graph, const PassContext&) { NormFuser(graph).Run(); }

}  // namespace espalier
