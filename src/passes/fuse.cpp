// An addition joins the op beside it, as one more operand of an op that is there already, so that what lies between the two is not
// written and read once more:
//
//   h = add(x, y)                         n, rstd, h = rms_norm(x, w, y)             the residual stream and the next norm
//   n, rstd = rms_norm(h, w)          ->
//
//   d = rms_norm_grad(x, w, rstd, dy)
//   s = add(d, r)                     ->  s = rms_norm_grad(x, w, rstd, dy, r)       and their adjoints
//
// The fused op rounds where its parts round, so no bit changes. It stands where the later part stood: nothing may read the result of the
// earlier one before that. Parts of other chunks or roles stay apart, and so do sums of more than two, whose order would change.
#include <algorithm>
#include <map>

#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Inputs of an op that an addition may join, without the one it brings.
const std::map<std::string, size_t, std::less<>> kNorms = {{"rms_norm", 2}, {"layer_norm", 3}};
const std::map<std::string, size_t, std::less<>> kNormGrads = {{"rms_norm_grad", 4}, {"layer_norm_grad", 5}};

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
    }
    std::erase_if(graph_.ops, [](const Op& op) { return op.kind.empty(); });
    graph_.Renumber();
  }

 private:
  static bool IsPlain(const Op& op, const std::map<std::string, size_t, std::less<>>& kinds) {
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
    Op& sum = graph_.ops[static_cast<size_t>(at)];
    for (size_t i = 0; i < 2; ++i) {
      Op* gradient = Neighbour(sum.inputs[i], at);
      if (gradient == nullptr || !IsPlain(*gradient, kNormGrads) || readers_[static_cast<size_t>(sum.inputs[i])].size() > 1 || !HaveOneType(sum))
        continue;
      gradient->inputs.push_back(sum.inputs[1 - i]);
      gradient->outputs = sum.outputs;
      sum = std::move(*gradient);
      *gradient = {};
      return;
    }
  }

  Graph& graph_;
  std::vector<int> maker_;                 // by value: the op that makes it; -1: none
  std::vector<std::vector<int>> readers_;  // by value: the ops that read it, in order; one past the last if it is a result
};

}  // namespace

void Fuse(Graph& graph) { Fuser(graph).Run(); }

}  // namespace espalier
