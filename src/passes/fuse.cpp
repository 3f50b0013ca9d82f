// An addition joins the op beside it, as one more operand of an op that is there already, so that what lies between the
// two is not written and read once more:
//
//   h = add(x, y)                     n, rstd, h = rms_norm(x, w, y)            the residual stream and the next norm
//   n, rstd = rms_norm(h, w)      ->
//
//   d = rms_norm_grad(x, w, rstd, dy)
//   s = add(d, r)                     ->  s = rms_norm_grad(x, w, rstd, dy, r)       and their adjoints
//
//   z = matmul(x, w)
//   y = add_bias(z, b)                ->  y = matmul(x, w, b)                        a product and its bias
//
// A fused norm rounds where its parts round, so no bit changes; a product with a bias is rounded once. The fused op
// stands where the later part stood: nothing may read the result of the earlier one before that. Parts of other chunks
// or roles stay apart, and so do sums of more than two, whose order would change.
#include <algorithm>
#include <map>

#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Inputs of an op that an addition may join, without the one it brings.
using Arity = std::map<std::string, size_t, std::less<>>;
const Arity kNorms = {{"rms_norm", 2}, {"layer_norm", 3}};
const Arity kNormGrads = {{"rms_norm_grad", 4}, {"layer_norm_grad", 5}};
const Arity kProducts = {{"matmul", 2}};

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), maker_(graph.values.size(), -1), readers_(graph.values.size()) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      for (int o : graph.ops[i].outputs) maker_[static_cast<size_t>(o)] = static_cast<int>(i);
      for (int v : graph.ops[i].inputs) readers_[static_cast<size_t>(v)].push_back(static_cast<int>(i));
    }
    for (int v : graph.results) readers_[static_cast<size_t>(v)].push_back(static_cast<int>(graph.ops.size()));
  }

  void Run() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const int at = static_cast<int>(i);
      if (IsPlain(graph_.ops[i], kNorms)) SumIntoNorm(at);
      if (IsSum(graph_.ops[i])) NormGradIntoSum(at);
      if (graph_.ops[i].kind == "add_bias") IntoAddition(at, 0, kProducts);
    }
    std::erase_if(graph_.ops, [](const Op& op) { return op.kind.empty(); });
    graph_.Renumber();
  }

 private:
  static bool IsPlain(const Op& op, const Arity& kinds) {
    const auto it = kinds.find(op.kind);
    return it != kinds.end() && op.inputs.size() == it->second;
  }
  static bool IsSum(const Op& op) { return op.kind == "add" && op.inputs.size() == 2; }
  const Type& TypeOf(int value) const { return graph_.values[static_cast<size_t>(value)].type; }
  bool HaveOneType(const Op& sum) const {
    return TypeOf(sum.inputs[0]) == TypeOf(sum.outputs[0]) && TypeOf(sum.inputs[1]) == TypeOf(sum.outputs[0]);
  }

  /// The op that makes a value, if it may join `op`: beside it, and nothing reads the value before it does.
  Op* Neighbour(int value, int op) {
    const int maker = maker_[static_cast<size_t>(value)];
    if (maker < 0 || readers_[static_cast<size_t>(value)].front() != op) return nullptr;
    Op &earlier = graph_.ops[static_cast<size_t>(maker)], &later = graph_.ops[static_cast<size_t>(op)];
    return earlier.role == later.role && earlier.chunk == later.chunk ? &earlier : nullptr;
  }

  void SumIntoNorm(int at) {
    Op& norm = graph_.ops[static_cast<size_t>(at)];
    Op* sum = Neighbour(norm.inputs[0], at);
    if (sum == nullptr || !IsSum(*sum) || !HaveOneType(*sum)) return;
    norm.inputs[0] = sum->inputs[0];
    norm.inputs.push_back(sum->inputs[1]);
    norm.outputs.push_back(sum->outputs[0]);
    *sum = {};
  }

  void NormGradIntoSum(int at) {
    if (HaveOneType(graph_.ops[static_cast<size_t>(at)]) && !IntoAddition(at, 0, kNormGrads))
      IntoAddition(at, 1, kNormGrads);
  }

  /// What makes term `term` of an addition of two takes the other term, and the addition's place, if nothing else reads
  /// the first.
  bool IntoAddition(int at, size_t term, const Arity& kinds) {
    Op& addition = graph_.ops[static_cast<size_t>(at)];
    Op* maker = Neighbour(addition.inputs[term], at);
    if (maker == nullptr || !IsPlain(*maker, kinds) || readers_[static_cast<size_t>(addition.inputs[term])].size() > 1)
      return false;
    maker->inputs.push_back(addition.inputs[1 - term]);
    maker->outputs = addition.outputs;
    addition = std::move(*maker);
    *maker = {};
    return true;
  }

  Graph& graph_;
  std::vector<int> maker_;  // by value: the op that makes it; -1: none
  std::vector<std::vector<int>>
      readers_;  // by value: the ops that read it, in order; one past the last if it is a result
};

}  // namespace

void Fuse(Graph& graph) { Fuser(graph).Run(); }

}  // namespace espalier
