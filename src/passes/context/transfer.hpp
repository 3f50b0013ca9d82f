#pragma once

#include "espalier/graph/graph.hpp"

namespace espalier {

/// A transfer of activations or their gradients over cp in forward or backward: a gather, a reduction, an all-to-all or
/// a hop.
inline bool IsContextTransfer(const Graph& graph, const Op& op) {
  return (IsCollective(op.kind) || op.kind == OpKind::kRingShift) && (op.role == Role::kF || op.role == Role::kB) &&
         op.Axes() == AxisSet{Axis::kCp} && graph.value(op.inputs[0]).frequency == Frequency::kMicrobatch;
}

}  // namespace espalier
