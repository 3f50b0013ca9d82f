// One message instead of many: collectives with the same kind, group, role, layer, chunk and element type become one
// multi-tensor op. Activations and parameters stay apart, because they use different lanes. The merged op is placed
// where the first of them was if all inputs are ready there, else where the last was if no result is read earlier.
// Activations are merged only if the ops are adjacent: an early message would keep its results in memory. Gradients of
// a layer are merged like parameters. Where gradients are reduced once per step and one layer's message would be mostly
// latency, several layers share a message.
#include <algorithm>
#include <map>
#include <ranges>
#include <tuple>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/graph/uses.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

using BatchKey = std::tuple<OpKind, AxisSet, Role, int, int, Dtype, bool, Frequency>;

class Coalescer {
 public:
  Coalescer(Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh), uses_(graph) {}

  void Run() {
    FindBuckets();
    // One open batch per key. An op is added to it if the batch still has a legal position.
    std::map<BatchKey, Batch> open;
    for (int i = 0; i < std::ssize(graph_.ops); ++i) {
      if (!IsCollective(graph_.op(i).kind)) continue;
      Batch& batch = open[KeyOf(graph_.op(i))];
      if (!batch.ops.empty() && !MayJoin(i, batch)) {
        Close(batch);
        batch = {};
      }
      Add(i, batch);
    }
    for (auto& [key, batch] : open) Close(batch);
    graph_.Renumber();
  }

 private:
  static constexpr int kNever = 1 << 30;
  static constexpr double kBytesPerRank = 1e6;

  /// Collectives that become one.
  struct Batch {
    std::vector<int> ops;
    int made = -1;      // position of the last op that makes an input
    int read = kNever;  // position of the first op that reads a result
  };

  BatchKey KeyOf(const Op& op) const {
    const Value& value = graph_.value(op.inputs[0]);
    const bool maximum = !(value.type.placements.partial_max & op.Axes()).Empty();
    const int layer = ReducesSums(op) ? buckets_.at({KindOf(op), op.layer}) : op.layer;
    return {op.kind, op.Axes(), op.role, layer, op.chunk, value.type.dtype, maximum, value.frequency};
  }

  /// For gradients that all microbatches have added to.
  bool ReducesSums(const Op& op) const {
    return op.role == Role::kS && IsCollective(op.kind) && graph_.value(op.inputs[0]).kind == ValueKind::kAccumulator;
  }
  using Kind = std::tuple<OpKind, AxisSet, int>;  // kind, group, chunk
  static Kind KindOf(const Op& op) { return {op.kind, op.Axes(), op.chunk}; }

  /// Neighbouring layers, from the last to the first, share a message of up to kBytesPerRank per rank. A hop of a ring
  /// sends that much at most, which at 50 GB/s takes ten times its latency of 2 us. No bucket is larger than the
  /// largest message of a layer, whose memory is needed anyway.
  void FindBuckets() {
    std::map<Kind, std::map<int, double>> bytes;  // by layer
    for (const Op& op : graph_.ops)
      if (ReducesSums(op)) {
        const Type& type = graph_.value(op.inputs[0]).type;
        bytes[KindOf(op)][op.layer] += double(LocalVolume(type, mesh_, {}) * SizeOf(type.dtype));
      }
    for (const auto& [kind, layers] : bytes) {
      double largest = 0;
      for (const auto& [layer, size] : layers) largest = std::max(largest, size);
      const double enough = std::min(largest, kBytesPerRank * mesh_.GroupSize(std::get<AxisSet>(kind)));
      double sum = 0;
      int bucket = kUnset;
      for (const auto& [layer, size] : std::views::reverse(layers)) {
        if (bucket == kUnset || sum + size > enough) {
          bucket = layer;
          sum = 0;
        }
        sum += size;
        buckets_[{kind, layer}] = bucket;
      }
    }
  }

  bool MayJoin(int id, const Batch& batch) const {
    const Op& op = graph_.op(id);
    if (MovesActivations(graph_, op) && batch.ops.back() + 1 != id) return false;
    return PositionOf(batch.ops.front(), id, std::max(batch.made, MadeBy(op)), std::min(batch.read, ReadBy(op))) >= 0;
  }
  void Add(int id, Batch& batch) const {
    batch.ops.push_back(id);
    batch.made = std::max(batch.made, MadeBy(graph_.op(id)));
    batch.read = std::min(batch.read, ReadBy(graph_.op(id)));
  }
  /// The last op that makes the input, -1 if it is ready from the start, as states are.
  int MadeBy(const Op& op) const {
    return graph_.value(op.inputs[0]).kind == ValueKind::kState ? -1 : uses_.LastWriter(op.inputs[0]);
  }
  int ReadBy(const Op& op) const { return uses_.FirstReader(op.outputs[0]); }

  /// Where ops from `first` to `last` may become one whose inputs op `made` is the last to make, and whose results op
  /// `read` is the first to read; -1: nowhere.
  static int PositionOf(int first, int last, int made, int read) {
    return made < first ? first : read > last ? last : -1;
  }

  void Close(const Batch& batch) {
    if (batch.ops.size() < 2) return;
    const int first = batch.ops.front(), last = batch.ops.back();
    Op merged = graph_.op(first);
    for (size_t k = 1; k < batch.ops.size(); ++k) {
      merged.inputs.push_back(graph_.op(batch.ops[k]).inputs[0]);
      merged.outputs.push_back(graph_.op(batch.ops[k]).outputs[0]);
    }
    for (int op : batch.ops) graph_.op(op) = {};
    graph_.op(PositionOf(first, last, batch.made, batch.read)) = std::move(merged);
  }

  Graph& graph_;
  const Mesh& mesh_;
  std::map<std::pair<Kind, int>, int> buckets_;  // by layer: the last layer of its bucket
  const Uses uses_;
};

}  // namespace

void Coalesce(Graph& graph, const PassContext& context) { Coalescer(graph, context.mesh).Run(); }

}  // namespace espalier
