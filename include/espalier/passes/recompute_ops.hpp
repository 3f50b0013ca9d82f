// The names of recompute.ops, found in a graph by the form of its ops: models mark nothing.
#pragma once

#include <optional>
#include <vector>

#include "espalier/deck/choices.hpp"
#include "espalier/graph/graph.hpp"

namespace espalier {

/// By op: the name under which recompute.ops can ask for it; none for ops of other roles than F, and for ops that no
/// name has: the sums of the residual stream, what writes to it, and what losses need.
std::vector<std::optional<RecomputeOp>> RecomputeOpsOf(const Graph& graph);

}  // namespace espalier
