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
// Loss and token count always accumulate as in the first form. With one microbatch per step nothing is added
// (StoreGradients): what makes a reduced gradient writes it where it stays until the update.
#include <map>

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
  LayerReducer(Graph& graph, const Deck& deck)
      : graph_(graph), sharded_(deck.parallel.zero >= 2), messages_(GradientMessages(deck)) {}

  void Run() {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
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
    graph_.Renumber();
  }

 private:
  /// The values of a weight gradient: of one microbatch and partial, reduced, and the sum over microbatches.
  struct Gradient {
    int raw, reduced, sum;
    int layer, chunk;
  };

  void Collect(Op& op) {
    for (int& output : op.outputs) {
      const int sum = output;
      Value raw = graph_.value(sum);
      const std::string name = raw.name;
      raw.name += ".microbatch";
      Value reduced = raw;
      reduced.name = name + ".joined";
      if (sharded_) reduced.layout += ";state";
      graph_.value(sum).layout = reduced.layout;
      Accumulate(graph_.value(sum));
      output = graph_.AddValue(std::move(raw));
      made_.push_back({output, graph_.AddValue(std::move(reduced)), sum, op.layer, op.chunk});
    }
  }
  void CloseLayer() {
    Add();
    for (const Gradient& g : made_)
      graph_.ops.push_back({OpKind::kReshard, {g.raw}, {g.reduced}, messages_, Role::kW, g.layer, g.chunk});
    reduced_ = std::move(made_);
    made_.clear();
  }
  void Add() {
    for (const Gradient& g : reduced_)
      graph_.ops.push_back({OpKind::kAccumulate, {g.reduced}, {g.sum}, {}, Role::kW, g.layer, g.chunk});
    reduced_.clear();
  }

  Graph& graph_;
  const bool sharded_;
  const Attributes messages_;
  std::vector<Gradient> made_, reduced_;  // of the current layer, and of the one before
};

}  // namespace

void MergeGradients(Graph& graph, const PassContext& context) {
  const bool each_microbatch = ReduceOf(context.deck, context.mesh) == ReduceFrequency::kMicrobatch;
  for (const Op& op : graph.ops) {
    if (!Define(op.kind).accumulates && (op.role != Role::kW || each_microbatch)) continue;
    for (int output : op.outputs) Accumulate(graph.value(output));
  }
  if (each_microbatch) LayerReducer(graph, context.deck).Run();
  graph.Renumber();
}

void StoreGradients(Graph& graph, int64_t microbatches) {
  if (microbatches != 1) return;
  std::map<int, int> kept;  // gradient of the microbatch -> accumulator
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::kAccumulate) kept[op.inputs[0]] = op.outputs[0];
  std::erase_if(graph.ops, [](const Op& op) { return op.kind == OpKind::kAccumulate; });
  for (Op& op : graph.ops)
    for (int& output : op.outputs)
      if (const auto it = kept.find(output); it != kept.end()) output = it->second;
  graph.Renumber();
}

}  // namespace espalier
