// Where weights are computed in bf16, their copies are kept from step to step, beside the fp32 masters: the update that
// writes a master writes its copy, too, instead of a cast at the start of each step.
//
//   P  w = cast(parameters/w)
//   F  y = matmul(x, w)                  ->   F  y = matmul(x, w)
//   U  parameters/w, m, v = adamw(...)        U  parameters/w, m, v, w = adamw(...) {copy="bf16"}
//
// A copy has the placements of its master: that of a shard is a shard, and is gathered as before. Bits do not change.
// Copies are no part of checkpoints. The casts are a program of their own (Purpose::kCopies), which runs whenever
// masters were drawn or loaded; training, evaluation and proof find the copies at the same place.
#include <map>

#include "espalier/graph/provenance.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// A cast that makes the copy of a master, on the chunk of the master.
bool MakesCopy(const Graph& graph, const Op& op) {
  if (op.kind != OpKind::kCast || op.role != Role::kP) return false;
  const Value& master = graph.value(op.inputs[0]);
  return master.kind == ValueKind::kState && master.chunk == op.chunk;
}

/// By master: its copy.
using Copies = std::map<int, int>;

/// Copies become caches.
Copies TakeCopies(Graph& graph) {
  Copies copies;
  for (const Op& op : graph.ops)
    if (MakesCopy(graph, op)) {
      copies[op.inputs[0]] = op.outputs[0];
      graph.value(op.outputs[0]).kind = ValueKind::kCache;
    }
  return copies;
}

/// If the op is an update that writes a master, which is its first output, it also writes the copy.
void WriteCopy(const Graph& graph, const Copies& copies, Op& update) {
  const auto copy = copies.find(update.outputs[0]);
  if (copy == copies.end()) return;
  update.outputs.push_back(copy->second);
  update.attributes.texts["copy"] = Name(graph.value(copy->second).type.dtype);
}

}  // namespace

void LeaveCopies(Graph& graph, const PassContext& context) {
  if (context.purpose != Purpose::kCopies) return;
  Graph left;
  std::map<int, int> values;
  // A master without a copy has its place among the others, too.
  for (size_t i = 0; i < graph.values.size(); ++i)
    if (IsParameter(graph.values[i])) values[static_cast<int>(i)] = left.AddValue(graph.values[i]);
  for (const Op& op : graph.ops) {
    if (!MakesCopy(graph, op)) continue;
    Op cast = op;
    cast.inputs = {values.at(op.inputs[0])};
    cast.outputs = {left.AddValue(graph.value(op.outputs[0]))};
    left.AddOp(std::move(cast));
  }
  graph = std::move(left);
}

void KeepCopies(Graph& graph, const PassContext& context) {
  if (KeepsComputeType(context.purpose)) return;
  const Copies copies = TakeCopies(graph);
  if (context.purpose != Purpose::kCopies) std::erase_if(graph.ops, [&](const Op& op) { return MakesCopy(graph, op); });
  for (Op& op : graph.ops)
    if (op.role == Role::kU && !op.outputs.empty()) WriteCopy(graph, copies, op);
  graph.Renumber();
}

}  // namespace espalier
