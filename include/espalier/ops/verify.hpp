// The invariants of a graph between any two passes.
#pragma once

#include <string_view>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// Checks op kinds and arities, that roles, layers and chunks are set and in range, that values are defined before use,
/// that types equal what each op's own rule infers, that frequencies are consistent, and that no partial value is
/// written to a state. Throws InvariantError naming `after` (the pass), the op and what is wrong.
void Verify(const Graph& graph, std::string_view after);

}  // namespace espalier
