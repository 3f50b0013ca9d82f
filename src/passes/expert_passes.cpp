// Rows of experts beyond the pool of a rank (experts.buffer). How many rows a routing gives to a rank is known only
// while a step runs, so the ops of a layer's experts are repeated until there is room for any routing. Pass p computes
// the rows from p pools on, and adds to what the passes before it made:
//
//   F  rows, .., places = dispatch(x, ..)          F  rows, .., places = dispatch(x, ..)
//   F  gate = grouped_matmul(rows, w)              ..
//   F  ..                                          F  y = combine(down, places)
//   F  y = combine(down, places)             ->    F  rows1, .., places1 = dispatch(x, ..) {pass=1}
//                                                  F  gate1 = grouped_matmul(rows1, w)
//                                                  F  ..
//                                                  F  y += combine(down1, places1)
//
// Backward does the same for dx and for the gradients of weights, which become role B: what the further passes need is
// computed again there, so nothing of them waits for backward or for a deferred W. Memory is that of one pass more,
// whatever the routing. Under balanced routing the further passes have no rows: kernels on CPUs return at once, those
// on GPUs cost their launch.
#include <algorithm>
#include <map>
#include <utility>

#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

bool MakesWeightGradient(const Op& op) {
  return op.kind == OpKind::kRowBiasGrad ||
         (op.kind == OpKind::kGroupedMatmul && op.attributes.Text("spec").ends_with("->enk"));
}
/// It makes values of tokens or weights of rows.
bool LeavesRows(const Op& op) {
  return op.kind == OpKind::kCombine || op.kind == OpKind::kDispatchGrad || MakesWeightGradient(op);
}

class ExpertPasses {
 public:
  ExpertPasses(Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh), is_row_(graph.values.size()) {
    for (const Op& op : graph.ops) {
      if (op.kind == OpKind::kDispatch) passes_[KeyOf(op)] = std::max(passes_[KeyOf(op)], PassesOf(op));
      if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombineGrad || (ReadsRows(op) && !LeavesRows(op)))
        for (int v : op.outputs) is_row_[static_cast<size_t>(v)] = true;
    }
  }

  void Run() {
    if (std::ranges::all_of(passes_, [](const auto& layer) { return layer.second == 1; })) return;
    const Rewriter old(graph_);
    old_ = &old.ops;
    for (const Op& op : old.ops) {
      const auto layer = passes_.find(KeyOf(op));
      const bool repeats = layer != passes_.end() && layer->second > 1 && LeavesRows(op) && ReadsPool(op);
      graph_.ops.push_back(op);
      if (!repeats) continue;
      if (op.kind == OpKind::kCombine) {
        Repeat({op}, layer->second);
        continue;
      }
      graph_.ops.back().role = Role::kB;
      std::vector<Op>& gradients = gradients_[KeyOf(op)];
      gradients.push_back(graph_.ops.back());
      if (op.kind == OpKind::kDispatchGrad) Repeat(std::exchange(gradients, {}), layer->second);
    }
    for (const auto& [layer, gradients] : gradients_)
      CHECK(gradients.empty(), "layer {} has a gradient of experts after that of their tokens", layer.second);
  }

 private:
  using Layer = std::pair<int, int>;  ///< chunk, layer
  static Layer KeyOf(const Op& op) { return {op.chunk, op.layer}; }

  bool ReadsRows(const Op& op) const {
    return std::ranges::any_of(op.inputs, [&](int v) { return is_row_[static_cast<size_t>(v)]; });
  }

  /// Passes that any routing needs, of a rank with the most tokens.
  int PassesOf(const Op& dispatch) const {
    const auto local = [&](int value) { return LocalShape(graph_.value(value).type, mesh_, {}); };
    const Shape chosen = local(dispatch.inputs[1]), pool = local(dispatch.outputs[2]);
    const int64_t rows = chosen[0] * chosen[1] * std::min(chosen[2], pool[0]), room = Volume(pool);
    return static_cast<int>(std::max<int64_t>(1, (rows + room - 1) / room));
  }
  /// A layer may have a second mixture, of one expert, whose pool has room for all rows.
  bool ReadsPool(const Op& op) const {
    for (int input : op.inputs)
      if (const int maker = graph_.value(input).producer; maker >= 0 && is_row_[static_cast<size_t>(input)]) {
        const Op& from = (*old_)[static_cast<size_t>(maker)];
        return from.kind == OpKind::kDispatch ? PassesOf(from) > 1 : ReadsPool(from);
      }
    return false;
  }

  /// The ops that leave rows, in all further passes.
  void Repeat(const std::vector<Op>& ends, int passes) {
    for (int pass = 1; pass < passes; ++pass) {
      copies_.clear();
      for (Op end : ends) {
        for (int& input : end.inputs) input = InPass(input, pass, end.role);
        end.attributes.numbers["pass"] = pass;
        end.attributes.numbers["adds"] = 1;
        graph_.ops.push_back(std::move(end));
      }
    }
  }

  /// The value of a pass that corresponds to this one; itself, if it is not of rows.
  int InPass(int value, int pass, Role role) {
    value = Recomputed(value, role);
    if (!is_row_[static_cast<size_t>(value)]) return value;
    if (const auto it = copies_.find(value); it != copies_.end()) return it->second;
    Op op = (*old_)[static_cast<size_t>(graph_.value(value).producer)];
    for (int& input : op.inputs) input = InPass(input, pass, role);
    for (int& output : op.outputs) output = copies_[output] = Copy(output, pass);
    op.role = role;
    op.attributes.numbers["pass"] = pass;
    graph_.ops.push_back(std::move(op));
    return copies_.at(value);
  }
  /// The value that backward reads instead of one that it recomputes.
  int Recomputed(int value, Role role) const {
    const int again = role == Role::kF ? -1 : graph_.FindOrNone(RecomputedName(graph_.value(value).name));
    return again < 0 ? value : again;
  }
  int Copy(int value, int pass) {
    Value copy = graph_.value(value);
    copy.name = graph_.Unique(fmt::format("{}.pass{}", copy.name, pass));
    copy.layout.clear();
    copy.producer = -1;
    is_row_.push_back(true);
    return graph_.AddValue(std::move(copy));
  }

  Graph& graph_;
  const Mesh& mesh_;
  std::vector<bool> is_row_;  // by value
  std::map<Layer, int> passes_;
  const std::vector<Op>* old_ = nullptr;
  std::map<Layer, std::vector<Op>> gradients_;  // those so far of a layer in backward
  std::map<int, int> copies_;                   // values of the pass at hand
};

}  // namespace

void RepeatExperts(Graph& graph, const PassContext& context) { ExpertPasses(graph, context.mesh).Run(); }

}  // namespace espalier
