// The ops of a job in the order in which a program issues them.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/ops/op_times.hpp"
#include "graph_facts.hpp"

namespace espalier {

using Segments = std::map<std::pair<int, Role>, std::vector<int>>;  // (chunk, role) -> ops in graph order

/// Whether the sums of a job's last layers wait for their messages at its end, or are added in the job after it.
enum class LastSums : uint8_t { kAtTheEnd, kInTheNextJob };
/// Whether the parameters of a job's first layers are gathered at its start, or in the job before it.
enum class FirstGathers : uint8_t { kAtTheStart, kInTheJobBefore };

/// An op of a job, and the number of its microbatch.
struct JobOp {
  int op = 0;
  int microbatch = 0;  ///< 0 or, in a joint job, 0 or 1: index among the microbatches of the job
  bool operator==(const JobOp&) const = default;
};

/// The ops of one chunk and some roles, without receives, in graph order: parts of a microbatch are interleaved, so a W
/// matmul is next to the B of its layer. Or the ops of two such jobs, interleaved (ops/list_schedule.hpp).
struct JobOps {
  /// Gathers of parameters before the first matmul of the job. Empty with FirstGathers::kAtTheStart.
  std::vector<JobOp> first;
  std::vector<JobOp> ops;  ///< all others but `late`
  /// Additions of reduced gradients (parallel.reduce = "microbatch") whose messages begin after the last matmul of the
  /// job, so that nothing is left in it to overlap with. Empty with LastSums::kAtTheEnd.
  std::vector<JobOp> late;
  /// Where those of the job before are added: the index in `ops` after two layers with matmuls, or the end. That bounds
  /// how long their messages hold memory.
  size_t late_of_last = 0;
  /// Where the first gathers of the next job are issued: the index in `ops` before the last layer with matmuls.
  size_t first_of_next = 0;
};

/// The message whose result an op adds to an accumulator, or widens for that; -1: none.
int MessageAddedBy(const Graph& graph, const Op& op);

JobOps OpsOfJob(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles, LastSums sums,
                FirstGathers gathers);

/// Two jobs of different microbatches as one, so that the messages of one overlap with the kernels of the other. The
/// ops of `a` and of `b` keep their order. Sends of `b` come after all ops of `a`, as in the order of messages
/// (schedule/receives.cpp).
JobOps Interleave(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const OpTimes& times, const JobOps& a,
                  const JobOps& b);

}  // namespace espalier
