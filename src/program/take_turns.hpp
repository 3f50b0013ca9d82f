// Two lists of ops that do not need each other, F of one microbatch and B and W of another, in one order, so that the
// messages of one overlap with the kernels of the other.
#pragma once

#include <vector>

#include "graph_facts.hpp"

namespace espalier {

/// Which list the next op comes from, 0 for `a` or 1 for `b`, for all ops. Each list keeps its order; a send of `b`
/// comes after all sends of `a`.
///
/// List scheduling with rough times (ops/rough_time.hpp): each lane runs what it is given in order, and the next op is
/// the one that can start first; of those that can start at once, the one with the least work until the next message of
/// its list, so that lanes of messages do not run dry.
std::vector<int> TakeTurns(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const std::vector<int>& a,
                           const std::vector<int>& b);

}  // namespace espalier
