#include "espalier/costs/costs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "espalier/deck/deck.hpp"
#include "espalier/util/error.hpp"
#include "formulas/formulas.hpp"
#include "instruction_costs.hpp"
#include "interpolate.hpp"

namespace espalier {
namespace {

/// The largest of `count` standard normals, as expected (Blom 1958): the quantile (count - 3/8) / (count + 1/4).
double ExpectedMaximum(int count) {
  const double share = (count - 0.375) / (count + 0.25);
  double low = 0, high = 10;  // quantiles of all counts from 1 on
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (std::erfc(-x / std::sqrt(2.0)) / 2 < share ? low : high) = x;
  }
  return low;
}

Cluster AsSeenBy(const JobFacts& job, Cluster cluster) {
  if (job.ordered_sums) cluster.node.all_reduce_bytes_per_us.clear();
  return cluster;
}

}  // namespace

JobFacts JobOf(const Deck& deck, int ranks) { return {ranks, deck.run.deterministic}; }

Costs::Costs(Cluster cluster, Routing routing, const JobFacts& job)
    : file_(std::move(cluster)),
      cluster_(AsSeenBy(job, file_)),
      routing_(std::move(routing)),
      job_(job),
      slowest_(1 + file_.spread * ExpectedMaximum(job.ranks)) {}

Cost Costs::Kernel(const LocalOp& op, bool accumulate) const {
  const auto formula = [this](const LocalOp& of, bool adds) { return KernelUs(cluster_, of, adds); };
  if (const std::optional<Cost> measured = MeasuredKernel(cluster_.table, op, accumulate, formula)) return *measured;
  return {formula(op, accumulate), CostSource::kFormula};
}

Cost Costs::Collective(OpKind kind, int64_t wire_bytes, const GroupPlace& place) const {
  const auto formula = [&](int64_t bytes) { return CollectiveUs(cluster_, kind, double(bytes), place); };
  if (const std::optional<Cost> measured = MeasuredTransfer(cluster_.table, kind, place, wire_bytes, formula))
    return *measured;
  return {formula(wire_bytes), CostSource::kFormula};
}

double Costs::PackingUs(const LocalOp& transfer) const {
  if (cluster_.device != DeviceKind::kCuda || transfer.blocks == 1) return 0;
  return MemoryUs(cluster_.compute, 2 * LargerSideBytes(transfer));
}

Cost Costs::Message(int64_t bytes, bool same_node) const {
  const GroupPlace pair{.ranks = 2, .nodes = same_node ? 1 : 2, .ranks_per_node = same_node ? 2 : 1};
  const auto formula = [&](int64_t size) { return MessageUs(cluster_, double(size), same_node); };
  if (const std::optional<Cost> measured = MeasuredTransfer(cluster_.table, OpKind::kSend, pair, bytes, formula))
    return *measured;
  return {formula(bytes), CostSource::kFormula};
}

/// All ranks of a node are taken to copy at the same time, as they do in the same step.
Costs::CopyCost Costs::HostCopy(OpKind kind, int64_t bytes, int ranks) const {
  const Cluster::Host& host = cluster_.host;
  const double out = host.out_bytes_per_us > 0 ? host.out_bytes_per_us : cluster_.compute.host_bytes_per_us;
  const double in = host.in_bytes_per_us > 0 ? host.in_bytes_per_us : out;
  double link = kind == OpKind::kCopyOut ? out : in;
  if (link == 0)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("{}: no time of copies to and from the host, which offload needs: set "
                                "host.out_bytes_per_us and host.in_bytes_per_us (doc/clusters.md)",
                                cluster_.path));
  link /= std::min(host.ranks_per_link, ranks);
  const double memory = host.dram_bytes_per_us > 0 ? host.dram_bytes_per_us / ranks : link * 2;
  return {host.copy_us + double(bytes) / std::min(link, memory),
          host.copy_us + double(bytes) / std::min(link, memory / 2)};
}

std::vector<InstructionCost> CostInstructions(const Costs& costs, const Program& program,
                                              const Coordinate& coordinate) {
  InstructionCosts of_op(costs, program, coordinate);
  std::vector<InstructionCost> result;
  result.reserve(program.instructions.size());
  double sending_us = 0;  // time of sends since the last kernel
  for (const Instruction& instruction : program.instructions) {
    InstructionCost& cost = result.emplace_back(of_op.Of(instruction));
    if (!costs.cluster().blocking_messages) continue;
    if (instruction.lane == Lane::kPpSend) sending_us += cost.us;
    if (instruction.lane == Lane::kCompute) cost.us += std::exchange(sending_us, 0);
  }
  return result;
}

}  // namespace espalier
