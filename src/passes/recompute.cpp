// Activation checkpointing: backward computes activations again instead of keeping them (Chen et al. 2016; Korthikanti
// et al. 2022, section 5). The mode of a layer says which F ops are recomputed: the ones that the model marks as cheap
// (selective), or only the cheap ones that attention reads, directly or through each other (attention), or all ops of a
// transformer layer except those whose results leave it, so that only the input of the layer is kept (full; the
// embedding is kept, of the head only its cheap norm is recomputed). Besides, ops of the names in recompute.ops are
// recomputed (recompute_ops.cpp), and the reshards of recomputed values. Rules (recompute.layers) give layers a mode
// and ops of their own. A recomputed op is cloned into role B, before the first backward op that reads one of its
// values. Ops that backward does not read are not cloned. A reshard of a clone serves all of B and W (but not a
// deferred W). A clone runs the same kernel on the same bits.
#include "espalier/deck/recompute.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/passes/recompute_ops.hpp"

namespace espalier {
namespace {

class Recomputer {
 public:
  Recomputer(Graph& graph, const PassContext& context, const RecomputePlan& plan)
      : graph_(graph),
        names_(RecomputeOpsOf(graph)),
        old_(graph),
        recomputed_(ops_.size()),
        defers_w_(context.schedule.DefersW()) {
    for (const Op& op : ops_) head_layer_ = std::max(head_layer_, op.layer);
    const std::map<int, LayerRecompute> plan_of = ByLayer(plan, context.stage_of_chunk);
    const std::vector<bool> leaves = LeavesLayer(), makes = MakesInputsOfAttention();
    const auto asked_for = [&](size_t i, const LayerRecompute& what) {
      const Op& op = ops_[i];
      const bool inside = InLayer(op) && !leaves[i];
      if (names_[i] && what.ops.Has(*names_[i]) && (op.cheap || inside)) return true;
      switch (what.mode) {
        case RecomputeMode::kAttention:
          return makes[i];
        case RecomputeMode::kSelective:
          return op.cheap;
        case RecomputeMode::kFull:
          return op.cheap || inside;
        default:
          return false;
      }
    };
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].role != Role::kF) continue;
      const auto found = plan_of.find(ops_[i].layer);
      recomputed_[i] =
          asked_for(i, found == plan_of.end() ? plan.Others() : found->second) || ReshardsRecomputed(ops_[i]);
    }
  }

  void Run() {
    for (const Op& op : ops_) {
      if (op.role == Role::kB || op.role == Role::kW)
        Emit(op);
      else
        graph_.ops.push_back(op);
    }
  }

 private:
  /// The recomputation of each transformer layer.
  std::map<int, LayerRecompute> ByLayer(const RecomputePlan& plan, const std::vector<int>& stage_of_chunk) const {
    std::map<int, int> stage_of;  // ascending: the layers of a stage in order
    for (const Op& op : ops_)
      if (op.role == Role::kF && InLayer(op) && op.chunk >= 0)
        stage_of.try_emplace(op.layer, stage_of_chunk[static_cast<size_t>(op.chunk)]);
    std::map<int, LayerRecompute> by_layer;
    std::map<int, int> places;  // by stage: layers so far
    for (const auto& [layer, stage] : stage_of) by_layer.emplace(layer, plan.Of(layer - 1, places[stage]++));
    return by_layer;
  }
  bool InLayer(const Op& op) const { return op.layer > 0 && op.layer < head_layer_; }
  int ProducerOf(int value) const { return graph_.value(value).producer; }
  bool ReshardsRecomputed(const Op& op) const {
    const int producer = op.kind == OpKind::kReshard ? ProducerOf(op.inputs[0]) : -1;
    return producer >= 0 && recomputed_[producer];
  }

  /// By op: it is cheap, and attention reads what it makes, itself or through other such ops and reshards.
  std::vector<bool> MakesInputsOfAttention() const {
    std::vector<bool> makes(ops_.size()), read(graph_.values.size());
    for (size_t i = ops_.size(); i-- > 0;) {
      const Op& op = ops_[i];
      if (op.role != Role::kF) continue;
      const bool needed = std::ranges::any_of(op.outputs, [&](int v) { return read[v]; });
      makes[i] = needed && op.cheap;
      if (op.kind == OpKind::kAttention || makes[i] || (needed && op.kind == OpKind::kReshard))
        for (int v : op.inputs) read[v] = true;
    }
    return makes;
  }

  /// By op: it makes a result, or a value that another layer reads in forward.
  std::vector<bool> LeavesLayer() const {
    std::vector<bool> leaves(ops_.size());
    const auto mark = [&](int value, int reader_layer) {
      const int producer = ProducerOf(value);
      if (producer >= 0 && ops_[producer].layer != reader_layer) leaves[producer] = true;
    };
    for (const Op& op : ops_)
      if (op.role == Role::kF)
        for (int v : op.inputs) mark(v, op.layer);
    for (int v : graph_.results) mark(v, kUnset);
    return leaves;
  }

  void Emit(Op op) {
    for (int& input : op.inputs) input = Again(input);
    if (const int served = ServedBy(op); served >= 0)
      again_[op.outputs[0]] = served;
    else
      Push(std::move(op));
  }

  /// The value that backward reads instead of this one: its clone, if it is recomputed.
  int Again(int value) {
    if (const auto it = again_.find(value); it != again_.end()) return it->second;
    const int producer = ProducerOf(value);
    if (producer < 0 || !recomputed_[producer]) return value;
    Op clone = ops_[producer];
    clone.role = Role::kB;
    clone.cheap = false;
    for (int& input : clone.inputs) input = Again(input);
    if (const int served = ServedBy(clone); served >= 0) return again_[value] = served;
    for (int& output : clone.outputs) output = again_[output] = Copy(output);
    Push(std::move(clone));
    return again_.at(value);
  }
  int Copy(int value) {
    Value copy = graph_.value(value);
    copy.name = graph_.Unique(RecomputedName(copy.name));
    copy.producer = -1;
    return graph_.AddValue(std::move(copy));
  }

  /// Source, type and chunk of a reshard in role B.
  using Resharded = std::tuple<int, std::string, int>;
  Resharded KeyOf(const Op& reshard) const {
    return {reshard.inputs[0], ToString(TypeOf(reshard.outputs[0])), reshard.chunk};
  }
  const Type& TypeOf(int value) const { return graph_.value(value).type; }
  /// A deferred W gathers for itself: otherwise the gathered value would be live for too long.
  int ServedBy(const Op& op) const {
    if (op.kind != OpKind::kReshard) return -1;
    if (op.role == Role::kW && defers_w_ && TypeOf(op.inputs[0]).placements.Partial().Empty()) return -1;
    const auto it = resharded_.find(KeyOf(op));
    return it == resharded_.end() ? -1 : it->second;
  }
  void Push(Op op) {
    if (op.kind == OpKind::kReshard && op.role == Role::kB) resharded_[KeyOf(op)] = op.outputs[0];
    graph_.ops.push_back(std::move(op));
  }

  Graph& graph_;
  const std::vector<std::optional<RecomputeOp>> names_;  // by op
  const Rewriter old_;
  const std::vector<Op>& ops_ = old_.ops;
  std::vector<bool> recomputed_;
  const bool defers_w_;
  int head_layer_ = 0;
  std::map<int, int> again_;  // value -> its clone, or the reshard that serves instead
  std::map<Resharded, int> resharded_;
};

}  // namespace

void Recompute(Graph& graph, const PassContext& context) {
  if (!HasBackward(context.purpose)) return;  // nothing else has backward
  const RecomputePlan plan(context.deck.recompute);
  if (!plan.Empty()) Recomputer(graph, context, plan).Run();
}

}  // namespace espalier
