// Gradient accumulation: a step's gradient is the sum over its microbatches. If gradients are reduced once per step
// (parallel.reduce), the op that computes a weight gradient adds it to an fp32 accumulator, which the first microbatch
// overwrites. Nothing of a microbatch outlives it:
//
//   W  dw = matmul(dy, x)              ->      W  dw += matmul(dy, x)                 dw: f32, of the step
//
// If they are reduced after each microbatch, the op computes the gradient of that microbatch alone. After the last op
// of a layer, one message reduces all gradients of the layer, and they are added to accumulators: sharded like the
// optimizer state (zero >= 2) or whole (zero = 1). They are added one layer later, so that the message overlaps with
// that layer:
//
//   W  dw2 = matmul(dy, x)                     W  m2 = matmul(dy, x)                  of one microbatch
//   W  dw1 = matmul(dx, z)             ->      W  r2 = reshard(m2)                    issued
//                                              W  m1 = matmul(dx, z)                  runs meanwhile
//                                              W  dw2 += r2
//                                              W  r1 = reshard(m1)
//                                              W  dw1 += r1
//
// Whole gradients that are summed over dp_replicate or tp as well are reduced by way of the shards, as with zero >= 2
// (reduce_scatter, all_reduce of the shard, all_gather). This sends the bytes of one all_reduce over all axes, and the
// order of the sums does not depend on zero:
//
//   W  r2 = reshard(m2)               ->      W  s2 = reshard(m2)                    sharded like the state
//                                              W  r2 = reshard(s2)                    gathered
//
// Loss and token count always accumulate as in the first form. With one microbatch per step nothing is added
// (StoreGradients): what makes a reduced gradient writes it where it stays until the update. That pass is after
// lower_reshards: a reshard that changes nothing has no op that could write.
#include <map>

#include "espalier/graph/rewriter.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "passes/message_type.hpp"

namespace espalier {
namespace {

void Accumulate(Value& value) {
  value.kind = ValueKind::kAccumulator;
  value.frequency = Frequency::kStep;
}

class LayerReducer {
 public:
  LayerReducer(Graph& graph, const PassContext& context)
      : graph_(graph),
        sharded_(context.deck.parallel.zero >= 2),
        gathered_(!sharded_ && SumsAcrossShards(context.mesh)),
        messages_(GradientMessages(context.deck)) {}

  void Run() {
    Rewriter old(graph_);
    std::vector<Op>& ops = old.ops;
    std::map<int, size_t> last_of_chunk;
    std::map<std::pair<int, int>, size_t> last_of_layer;
    for (size_t i = 0; i < ops.size(); ++i)
      if (ops[i].role == Role::kW) last_of_chunk[ops[i].chunk] = last_of_layer[{ops[i].chunk, ops[i].layer}] = i;
    for (size_t i = 0; i < ops.size(); ++i) {
      Op op = std::move(ops[i]);
      const bool weight = op.role == Role::kW;
      const int chunk = op.chunk, layer = op.layer;
      if (weight) Collect(op);
      graph_.ops.push_back(std::move(op));
      if (weight && last_of_layer.at({chunk, layer}) == i) CloseLayer();
      if (weight && last_of_chunk.at(chunk) == i) Add();
    }
  }

 private:
  /// The values of a weight gradient: of one microbatch and partial, reduced, and the sum over microbatches. `shards`
  /// comes before `reduced` where that is gathered.
  struct Gradient {
    int raw, shards, reduced, sum;
    int layer, chunk;
  };

  /// A gradient may be a sum over axes that shard the state and over others.
  static bool SumsAcrossShards(const Mesh& mesh) {
    return mesh.GroupSize(kStateAxes) > 1 && mesh.GroupSize(kAxesOfStage - kStateAxes) > 1;
  }

  void Collect(Op& op) {
    for (int& output : op.outputs) {
      const int sum = output;
      Value raw = graph_.value(sum);
      const std::string name = raw.name;
      raw.name += ".microbatch";
      Value reduced = raw, shards = raw;
      reduced.name = name + ".joined";
      shards.name = name + ".shards";
      shards.layout += ";state";
      if (sharded_) reduced.layout = shards.layout;
      graph_.value(sum).layout = reduced.layout;
      Accumulate(graph_.value(sum));
      output = graph_.AddValue(std::move(raw));
      const int of_shards = gathered_ ? graph_.AddValue(std::move(shards)) : kUnset;
      made_.push_back({output, of_shards, graph_.AddValue(std::move(reduced)), sum, op.layer, op.chunk});
    }
  }
  void CloseLayer() {
    Add();
    for (const Gradient& g : made_) Reshard(g, g.raw, gathered_ ? g.shards : g.reduced);
    if (gathered_)
      for (const Gradient& g : made_) Reshard(g, g.shards, g.reduced);
    reduced_ = std::move(made_);
    made_.clear();
  }
  void Reshard(const Gradient& g, int from, int to) {
    graph_.ops.push_back({OpKind::kReshard, {from}, {to}, messages_, Role::kW, g.layer, g.chunk});
  }
  void Add() {
    for (const Gradient& g : reduced_)
      graph_.ops.push_back({OpKind::kAccumulate, {g.reduced}, {g.sum}, {}, Role::kW, g.layer, g.chunk});
    reduced_.clear();
  }

  Graph& graph_;
  const bool sharded_;
  const bool gathered_;  // whole gradients are gathered from reduced shards
  const Attributes messages_;
  std::vector<Gradient> made_, reduced_;  // of the current layer, and of the one before
};

}  // namespace

void MergeGradients(Graph& graph, const PassContext& context) {
  if (KeepsComputeType(context.purpose)) return;
  const bool each_microbatch =
      context.purpose != Purpose::kGradients && ReduceOf(context.deck, context.mesh) == ReduceFrequency::kMicrobatch;
  for (const Op& op : graph.ops) {
    if (!Define(op.kind).accumulates && (op.role != Role::kW || each_microbatch)) continue;
    for (int output : op.outputs) Accumulate(graph.value(output));
  }
  if (each_microbatch) LayerReducer(graph, context).Run();
  graph.Renumber();
}

void StoreGradients(Graph& graph, const PassContext& context) {
  if (context.purpose != Purpose::kTrain || BatchOf(context.deck, context.mesh).microbatches != 1) return;
  std::map<int, int> kept;  // gradient of the microbatch -> accumulator
  for (Op& op : graph.ops) {
    if (op.kind != OpKind::kAccumulate) continue;
    kept[op.inputs[0]] = op.outputs[0];
    op = {};
  }
  for (Op& op : graph.ops)
    for (int& output : op.outputs)
      if (const auto it = kept.find(output); it != kept.end()) output = it->second;
  graph.Renumber();
}

}  // namespace espalier
