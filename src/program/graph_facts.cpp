#include "graph_facts.hpp"

#include <algorithm>

#include "espalier/graph/provenance.hpp"
#include "espalier/graph/signature.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Lane LaneOf(const Graph& graph, const Op& op);

/// The lane of collectives.
Lane LaneOf(CommAxis axis) {
  return *std::ranges::find_if(kLanes, [&](Lane lane) { return lane != Lane::kCompute && CommAxisOf(lane) == axis; });
}

/// The second reduction of a gradient, after one on lane dp.
bool FollowsLaneDp(const Graph& graph, const Op& op) {
  return ReducesGradients(graph, op) && std::any_of(op.inputs.begin(), op.inputs.end(), [&](int v) {
           const int producer = graph.value(v).producer;
           return producer >= 0 && LaneOf(graph, graph.op(producer)) == Lane::kDp;
         });
}

/// Keys, values and their gradients use lane cp. Parameters and their gradients, which are sharded on cp, too, use lane
/// dp, so that a prefetched gather never delays a hop. So does what follows on tp: on its own lane it would hold up
/// activations until lane dp is done.
Lane LaneOf(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::kCopyOut) return Lane::kCopyOut;
  if (op.kind == OpKind::kCopyIn) return Lane::kCopyIn;
  if (!IsCommunication(op.kind)) return Lane::kCompute;
  if (op.kind == OpKind::kSend) return Lane::kPpSend;
  if (op.kind == OpKind::kRecv) return Lane::kPpRecv;
  const CommAxis carrier = CarrierOf(op.Axes(), MovesActivations(graph, op) ? &AxisRow::activations : &AxisRow::others);
  return LaneOf(FollowsLaneDp(graph, op) ? CommAxis::kDp : carrier);
}

MemoryClass ClassOf(const Graph& graph, const Value& v) {
  if (IsCopy(graph, v) || IsParameter(v)) return MemoryClass::kParameters;
  if (v.kind == ValueKind::kState) return MemoryClass::kOptimizer;
  if (v.kind == ValueKind::kAccumulator || IsGradientOfWeight(v)) return MemoryClass::kGradients;
  if (v.producer < 0) return MemoryClass::kActivations;
  if (IsStaged(v)) return MemoryClass::kCommunication;
  const Op& maker = graph.op(v.producer);
  if (maker.role == Role::kP || GathersParameters(graph, maker)) return MemoryClass::kParameters;
  return maker.role == Role::kS ? MemoryClass::kGradients : MemoryClass::kActivations;
}

OpFacts FactsOf(const Graph& graph, const Op& op, Signatures& signatures) {
  const bool sums = !IsHostCopy(op.kind) && std::ranges::any_of(op.outputs, [&](int v) {
    return graph.value(v).kind == ValueKind::kAccumulator || IsStagedSum(graph.value(v));
  });
  const std::optional<Strip> strip = StripOf(op);
  return {LaneOf(graph, op), sums, op.Adds(), signatures.Of(op), &Define(op.kind).in_place, strip ? strip->index : -1};
}

}  // namespace

GraphFacts::GraphFacts(const Graph& graph) {
  Signatures signature_of;
  signature_of.Read(graph);
  ops.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    ops.push_back(FactsOf(graph, op, signature_of));
    signatures = std::max(signatures, ops.back().signature + 1);
  }
  values.reserve(graph.values.size());
  for (const Value& v : graph.values)
    values.push_back({v.kind != ValueKind::kActivation, v.frequency == Frequency::kStep, -1, ClassOf(graph, v)});
  for (size_t i = 0; i < graph.ops.size(); ++i)
    for (int output : graph.ops[i].outputs) values[output].last_writer = static_cast<int>(i);
  for (int id : graph.results) values[id].persistent = true;
  for (const Op& op : graph.ops)
    if (const auto neighbours_of = Define(op.kind).neighbours; neighbours_of != nullptr) {
      const Neighbours neighbours = neighbours_of(op);
      AddBlock(op.inputs, neighbours.inputs);
      AddBlock(op.outputs, neighbours.outputs);
    }
}

void GraphFacts::AddBlock(const std::vector<int>& operands, const Neighbours::Operands& neighbours) {
  if (neighbours.count == 0) return;
  const auto first = operands.begin() + static_cast<ptrdiff_t>(neighbours.first);
  std::vector<int> block(first, first + static_cast<ptrdiff_t>(neighbours.count));
  const int known = values[block[0]].block;
  CHECK(known < 0 ? std::ranges::all_of(block, [&](int v) { return values[v].block < 0; }) : blocks[known] == block,
        "value {} has other neighbours already", block[0]);
  if (known >= 0) return;
  for (int v : block) values[v].block = static_cast<int>(blocks.size());
  blocks.push_back(std::move(block));
}

}  // namespace espalier
