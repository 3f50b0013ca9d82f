// Which ops of role S a program issues while the last microbatch still runs backward (overlap.gradients): the
// reductions of gradients. A layer's reductions are ready when the last microbatch has added to its gradients, so the
// last layer comes first.
#pragma once

#include <vector>

#include "graph_facts.hpp"

namespace espalier {

/// Early ops are communication of role S whose inputs are gradients, or were made of gradients by early ops of the same
/// lane: no lane then waits for another one's messages. Local ops are early only if such communication reads their
/// results, so that kernels never wait for messages.
struct EarlyOps {
  /// None if `enabled` is false.
  EarlyOps(const Graph& graph, const GraphFacts& facts, bool enabled);

  std::vector<int> inputs;                ///< by op: how many inputs an early op has; 0: not early
  std::vector<std::vector<int>> readers;  ///< by value: the early ops that read it, once per input; may be empty
};

}  // namespace espalier
