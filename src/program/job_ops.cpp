#include "job_ops.hpp"

#include <algorithm>

#include "espalier/ops/op.hpp"

namespace espalier {
namespace {

constexpr int kLayersUnderLateSums = 2;

bool IsWork(const Op& op) { return Define(op.kind).flops != nullptr; }

std::vector<int> Interleaved(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles) {
  std::vector<int> ops;
  for (Role role : roles)
    if (const auto segment = segments.find({chunk, role}); segment != segments.end())
      ops.insert(ops.end(), segment->second.begin(), segment->second.end());
  std::sort(ops.begin(), ops.end());
  std::erase_if(ops, [&](int op) { return graph.op(op).kind == OpKind::kRecv; });
  return ops;
}

/// The first op after so many layers with matmuls.
size_t AfterLayers(const Graph& graph, const std::vector<int>& ops, int layers) {
  int seen = 0, layer = kUnset;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = graph.op(ops[i]);
    if (!IsWork(op) || op.layer == layer) continue;
    if (seen++ == layers) return i;
    layer = op.layer;
  }
  return ops.size();
}

/// The last op that can run under a message; -1: none.
int LastWork(const Graph& graph, const std::vector<int>& ops) {
  const auto last = std::find_if(ops.rbegin(), ops.rend(), [&](int op) { return IsWork(graph.op(op)); });
  return last == ops.rend() ? -1 : *last;
}

bool AddsWhatComesAfter(const Graph& graph, int op, int after) {
  if (graph.op(op).kind != OpKind::kAccumulate) return false;
  const int producer = graph.value(graph.op(op).inputs[0]).producer;
  return producer > after && IsCommunication(graph.op(producer).kind);
}

}  // namespace

JobOps OpsOfJob(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles,
                LastSums sums) {
  JobOps job;
  job.ops = Interleaved(graph, segments, chunk, roles);
  if (sums == LastSums::kInTheNextJob) {
    const int last = LastWork(graph, job.ops);
    const auto late = std::stable_partition(job.ops.begin(), job.ops.end(),
                                            [&](int op) { return !AddsWhatComesAfter(graph, op, last); });
    job.late.assign(late, job.ops.end());
    job.ops.erase(late, job.ops.end());
  }
  job.late_of_last = AfterLayers(graph, job.ops, kLayersUnderLateSums);
  return job;
}

}  // namespace espalier
