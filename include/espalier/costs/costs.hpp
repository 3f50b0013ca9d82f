// Costs of instructions on a cluster. A measured kernel or collective costs its time in the table; others are
// interpolated between measured neighbours, or follow a formula (src/costs/formulas). Pure and deterministic.
#pragma once

#include <string_view>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "espalier/costs/routing.hpp"
#include "espalier/program/instruction.hpp"
#include "espalier/util/enum_array.hpp"

namespace espalier {

enum class CostSource : uint8_t { kMeasured, kInterpolated, kFormula };
inline constexpr int kCostSourceCount = 3;
template <typename T>
using ByCostSource = EnumArray<CostSource, T, kCostSourceCount>;
std::string_view Name(CostSource source);  ///< "measured", "interpolated", "formula"

struct Cost {
  double us = 0;
  CostSource source = CostSource::kFormula;
};

/// The port of a rank that a transfer occupies. Transfers at the same port at the same time share its bandwidth,
/// separately in each direction: a send goes out, a recv comes in, a collective does both.
enum class Port : uint8_t { kNone, kNode, kNetwork };

struct Deck;

/// Facts of a job on which times depend, besides its programs.
struct JobFacts {
  int ranks = 1;
  bool ordered_sums = false;  ///< run.deterministic: no switch adds
};
JobFacts JobOf(const Deck& deck, int ranks);

class Costs {
 public:
  explicit Costs(Cluster cluster, Routing routing = {}, const JobFacts& job = {});
  const Cluster& cluster() const { return cluster_; }
  const Routing& routing() const { return routing_; }
  /// The same cluster and routing for another job.
  Costs Of(const JobFacts& job) const { return Costs(file_, routing_, job); }
  /// For the rank that the routing gives most rows.
  Costs OfTheFullestRank() const { return Costs(file_, routing_.OfTheFullestRank(), job_); }
  /// Kernels of the slowest rank of the job take so many times their time: by cluster.spread, the expected maximum.
  double slowest() const { return slowest_; }

  /// A kernel alone on its device, launch gap included.
  Cost Kernel(const LocalOp& op, bool accumulate) const;
  /// Cost of a collective or ring_shift in which every member sends `wire_bytes` (WireBytes), from the arrival of the
  /// last member on, if nothing else uses their ports.
  Cost Collective(OpKind kind, int64_t wire_bytes, const GroupPlace& place) const;
  /// Time to copy the rows of a strip that are several blocks in memory; NCCL's collectives need adjacent messages.
  double PackingUs(const LocalOp& transfer) const;
  /// A message to one peer, under the same conditions.
  Cost Message(int64_t bytes, bool same_node) const;
  /// A copy between the memory of a device and that of its node, while `ranks` ranks of the node copy: alone, or with
  /// one in the other direction on each rank beside it. Throws UserError (kDeck) if the cluster file has no rates.
  struct CopyCost {
    double alone_us = 0, beside_us = 0;
  };
  CopyCost HostCopy(OpKind kind, int64_t bytes, int ranks) const;

 private:
  Cluster file_, cluster_;  // as in the file; as the job sees it
  Routing routing_;
  JobFacts job_;
  double slowest_;
};

/// The place of the group of `coordinate` over `axes`: ranks fill nodes in order, ranks_per_node each.
GroupPlace PlaceOf(const Mesh& mesh, AxisSet axes, const Coordinate& coordinate, int ranks_per_node);

/// The cost of an instruction of a program.
struct InstructionCost {
  double us = 0;
  CostSource source = CostSource::kFormula;
  Port port = Port::kNone;
  double beside = 1;  ///< of a copy to or from the host: its time relative to `us` while one goes the other way
};
/// The axes that decide which experts a rank has, if times depend on it; else none.
AxisSet RoutingAxes(const Costs& costs, const Program& program);
/// Costs of every instruction of the rank at `coordinate`, by index. A recv costs as much as its send.
std::vector<InstructionCost> CostInstructions(const Costs& costs, const Program& program, const Coordinate& coordinate);

}  // namespace espalier
