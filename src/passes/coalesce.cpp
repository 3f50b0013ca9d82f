// One message instead of many: collectives of one kind, group, role, layer, chunk and element type become one op with
// many tensors; activations apart from parameters, which travel on other lanes. It stands where the first of them stood
// if all inputs are there by then, else where the last stood if no result was read before. Activations are joined only
// where they stand side by side: a message that comes early would keep what it brings in memory. Gradients of a layer
// are joined as parameters are.
#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

using Key = std::tuple<std::string, double, Role, int, int, Dtype, bool, Frequency>;

bool IsCollective(const Op& op) {
  return op.kind == "all_gather" || op.kind == "reduce_scatter" || op.kind == "all_reduce" || op.kind == "all_to_all";
}

class Coalescer {
 public:
  explicit Coalescer(Graph& graph) : graph_(graph), made_(graph.values.size(), -1), read_(graph.values.size(), kNever) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      for (int o : graph.ops[i].outputs)
        if (graph.values[static_cast<size_t>(o)].kind != ValueKind::kState)
          made_[static_cast<size_t>(o)] = static_cast<int>(i);
      for (int v : graph.ops[i].inputs)
        read_[static_cast<size_t>(v)] = std::min(read_[static_cast<size_t>(v)], static_cast<int>(i));
    }
  }

  void Run() {
    // Batches in the order of their first op; an op joins the open batch of its key if the batch can still stand
    // somewhere.
    std::map<Key, std::vector<int>> open;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (!IsCollective(op)) continue;
      std::vector<int>& batch = open[KeyOf(op)];
      batch.push_back(static_cast<int>(i));
      if (batch.size() > 1 && (PositionOf(batch) < 0 || !MayJoin(batch))) {
        batch.pop_back();
        Close(batch);
        batch = {static_cast<int>(i)};
      }
    }
    for (auto& [key, batch] : open) Close(batch);
    Rebuild();
  }

 private:
  static constexpr int kNever = 1 << 30;

  Key KeyOf(const Op& op) const {
    const Value& value = graph_.values[static_cast<size_t>(op.inputs[0])];
    const bool maximum =
        !(value.type.placements.partial_max & AxisSet::FromBits(static_cast<int>(op.attributes.Number("axes"))))
             .Empty();
    return {op.kind,        op.attributes.Number("axes"), op.role, op.layer, op.chunk, value.type.dtype, maximum,
            value.frequency};
  }

  bool MayJoin(const std::vector<int>& batch) const {
    const Op& last = graph_.ops[batch.back()];
    const bool gradient = last.role == Role::kW && last.kind != "all_gather";
    const bool activation =
        graph_.values[static_cast<size_t>(last.inputs[0])].frequency == Frequency::kMicrobatch && !gradient;
    return !activation || batch[batch.size() - 2] + 1 == batch.back();
  }

  int PositionOf(const std::vector<int>& batch) const {
    const int first = batch.front(), last = batch.back();
    const auto ready = [&](int op) { return made_[static_cast<size_t>(graph_.ops[op].inputs[0])] < first; };
    const auto unread = [&](int op) { return read_[static_cast<size_t>(graph_.ops[op].outputs[0])] > last; };
    if (std::all_of(batch.begin(), batch.end(), ready)) return first;
    if (std::all_of(batch.begin(), batch.end(), unread)) return last;
    return -1;
  }

  void Close(const std::vector<int>& batch) {
    if (batch.size() < 2) return;
    Op joint = graph_.ops[batch[0]];
    for (size_t k = 1; k < batch.size(); ++k) {
      joint.inputs.push_back(graph_.ops[batch[k]].inputs[0]);
      joint.outputs.push_back(graph_.ops[batch[k]].outputs[0]);
    }
    for (int op : batch) joined_[op] = {};
    joined_[PositionOf(batch)] = std::move(joint);
  }

  void Rebuild() {
    std::vector<Op> ops;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto it = joined_.find(static_cast<int>(i));
      if (it == joined_.end())
        ops.push_back(std::move(graph_.ops[i]));
      else if (!it->second.kind.empty())
        ops.push_back(std::move(it->second));
    }
    graph_.ops = std::move(ops);
    graph_.Renumber();
  }

  Graph& graph_;
  std::vector<int> made_,
      read_;  // by value: position of the op that makes it (states are there before), of the first that reads it
  std::map<int, Op> joined_;  // by position: the joint op, or nothing
};

}  // namespace

void Coalesce(Graph& graph) { Coalescer(graph).Run(); }

}  // namespace espalier
