// A step's gradient is the sum over its microbatches. With reduce = "step" the op that makes a weight gradient adds it
// to an fp32 accumulator right away (the first microbatch overwrites), so nothing of a microbatch outlives it and
// synchronisation comes once, after the last. With "microbatch" it makes that microbatch's gradient alone; after the
// last of a layer all of them are joined, in one message, and added to accumulators that are sharded as the optimizer's
// state is (zero >= 2) or whole (zero = 1). Adding comes one layer later, so that the message travels under that layer.
// Loss and token count are summed in the first way always.
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

void Accumulate(Value& value) {
  value.kind = ValueKind::kAccumulator;
  value.frequency = Frequency::kStep;
}

class LayerReducer {
 public:
  LayerReducer(Graph& graph, bool sharded) : graph_(graph), sharded_(sharded) {}

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
  /// A weight gradient on its way: of one microbatch and still partial, joined, and the sum over microbatches.
  struct Gradient {
    int raw, joined, sum;
    int layer, chunk;
  };

  void Collect(Op& op) {
    for (int& output : op.outputs) {
      const int sum = output;
      Value raw = graph_.values[static_cast<size_t>(sum)];
      const std::string name = raw.name;
      raw.name += ".microbatch";
      Value joined = raw;
      joined.name = name + ".joined";
      if (sharded_) joined.layout += ";state";
      graph_.values[static_cast<size_t>(sum)].layout = joined.layout;
      Accumulate(graph_.values[static_cast<size_t>(sum)]);
      output = graph_.AddValue(std::move(raw));
      made_.push_back({output, graph_.AddValue(std::move(joined)), sum, op.layer, op.chunk});
    }
  }
  void CloseLayer() {
    Add();
    for (const Gradient& g : made_)
      graph_.ops.push_back({"reshard", {g.raw}, {g.joined}, {}, Role::kW, g.layer, g.chunk});
    joined_ = std::move(made_);
    made_.clear();
  }
  void Add() {
    for (const Gradient& g : joined_)
      graph_.ops.push_back({"accumulate", {g.joined}, {g.sum}, {}, Role::kW, g.layer, g.chunk});
    joined_.clear();
  }

  Graph& graph_;
  const bool sharded_;
  std::vector<Gradient> made_, joined_;  // of the layer at hand, and of the one before
};

}  // namespace

void MergeGradients(Graph& graph, const Deck& deck) {
  const bool each_microbatch = deck.parallel.reduce == "microbatch";
  for (const Op& op : graph.ops) {
    if (!Define(op.kind).accumulates && (op.role != Role::kW || each_microbatch)) continue;
    for (int output : op.outputs) Accumulate(graph.values[static_cast<size_t>(output)]);
  }
  if (each_microbatch) LayerReducer(graph, deck.parallel.zero >= 2).Run();
  graph.Renumber();
}

}  // namespace espalier
