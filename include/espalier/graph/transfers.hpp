// Kinds of collectives and reshards: of activations, of parameters, of gradients of weights.
#pragma once

#include <algorithm>
#include <vector>

#include "espalier/graph/provenance.hpp"

namespace espalier {

/// The operands of an op that are on the host, once each: its inputs, then its other outputs.
inline std::vector<int> HostOperands(const Graph& graph, const Op& op) {
  std::vector<int> on_host;
  for (const std::vector<int>* operands : {&op.inputs, &op.outputs})
    for (int v : *operands)
      if (graph.value(v).space == Space::kHost && std::ranges::find(on_host, v) == on_host.end()) on_host.push_back(v);
  return on_host;
}

/// Brings weights from the host, for one microbatch (pass `stream_parameters`).
inline bool BringsParameters(const Graph& graph, const Op& op) {
  return op.kind == OpKind::kCopyIn && op.frequency() == Frequency::kMicrobatch &&
         IsKept(graph.value(op.inputs[0]).kind);
}
/// Brings sums of gradients from the host, to which a microbatch adds. In microbatch 0 it does nothing.
inline bool BringsSums(const Graph& graph, const Op& op) {
  return op.kind == OpKind::kCopyIn && op.frequency() == Frequency::kMicrobatch &&
         graph.value(op.inputs[0]).kind == ValueKind::kAccumulator;
}
/// The op reads what is made in each microbatch, not a value of the step; a weight from the host is one of the step.
inline bool ReadsMicrobatch(const Graph& graph, const Op& op) {
  const Value& v = graph.value(op.inputs[0]);
  return v.frequency == Frequency::kMicrobatch && !IsStagedWeight(v);
}

/// True if the op of a microbatch makes, sends or adds up gradients of weights: all of role W, and some of others.
inline bool HandlesGradients(const Graph& graph, const Op& op) {
  if (op.frequency() != Frequency::kMicrobatch) return false;
  return op.role == Role::kW || (!op.outputs.empty() && IsGradientOfWeight(graph.value(op.outputs[0])));
}
/// A reduction of gradients of weights, each microbatch or once per step.
inline bool ReducesGradients(const Graph& graph, const Op& op) {
  return op.role == Role::kS || (HandlesGradients(graph, op) && op.kind != OpKind::kAllGather);
}
/// A reshard per microbatch of step values.
inline bool GathersParameters(const Graph& graph, const Op& op) {
  return IsReshard(op.kind) && op.frequency() == Frequency::kMicrobatch && !op.inputs.empty() &&
         !ReadsMicrobatch(graph, op);
}
/// A message of activations or their gradients.
inline bool MovesActivations(const Graph& graph, const Op& op) {
  return ReadsMicrobatch(graph, op) && !ReducesGradients(graph, op);
}

/// A transfer over cp in forward or backward: a gather, a reduction, an all-to-all or a hop of activations or their
/// gradients.
inline bool IsContextTransfer(const Graph& graph, const Op& op) {
  return (IsCollective(op.kind) || op.kind == OpKind::kRingShift) && (op.role == Role::kF || op.role == Role::kB) &&
         op.Axes() == AxisSet{Axis::kCp} && ReadsMicrobatch(graph, op);
}
/// A gather or reduction of tokens, or of their gradients, over ranks that share experts, unless these are ranks of tp
/// or of cp alone.
inline bool IsExpertTransfer(const Graph& graph, const Op& op) {
  return IsCollective(op.kind) && (op.Axes() - kNearAxes).Empty() &&
         CarrierOf(op.Axes(), &AxisRow::activations) == CommAxis::kEp && MovesActivations(graph, op);
}
/// A message of parameters or their gradients, over axes other than tp. It moves no activations.
inline bool IsWeightTransfer(const Graph& graph, const Op& op) {
  return IsCommunication(op.kind) && !IsContextTransfer(graph, op) && !IsExpertTransfer(graph, op) &&
         !(op.Axes() - kTensorAxes).Empty();
}
/// A collective over the axes of tp alone.
inline bool IsTensorCollective(const Op& op) { return IsCollective(op.kind) && (op.Axes() - kTensorAxes).Empty(); }

}  // namespace espalier
