// The ops of a job in the order in which a program issues them.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

using Segments = std::map<std::pair<int, Role>, std::vector<int>>;  // (chunk, role) -> ops in graph order

/// Whether the sums of a job's last layers wait for their messages at its end, or are added in the job after it.
enum class LastSums : uint8_t { kAtTheEnd, kInTheNextJob };

/// The ops of one chunk and some roles, without receives, in graph order: parts of a microbatch are interleaved, so a W
/// matmul is next to the B of its layer.
struct JobOps {
  std::vector<int> ops;
  /// Additions of reduced gradients (parallel.reduce = "microbatch") whose messages begin after the last matmul of the
  /// job, so that nothing is left in it to overlap with. Empty with LastSums::kAtTheEnd.
  std::vector<int> late;
  /// Where those of the job before are added: the index in `ops` after two layers with matmuls, or the end. That bounds
  /// how long their messages hold memory.
  size_t late_of_last = 0;
};

JobOps OpsOfJob(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles, LastSums sums);

}  // namespace espalier
