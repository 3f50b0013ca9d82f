// Everything that the clocks need and that is constant while they run. Each class of ranks with equal times has one
// clock.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "espalier/simulate/simulate.hpp"
#include "simulate/fold.hpp"

namespace espalier::simulate {

/// The costs of a program's items. Most items of an op cost the same in all microbatches.
struct ItemCosts {
  std::vector<InstructionCost> different;
  std::vector<uint32_t> of_item;        ///< in `different`
  ByCostSource<double> by_source_us{};  ///< sums
  const InstructionCost& Of(int item) const { return different[of_item[static_cast<size_t>(item)]]; }
};

/// One clock: the lowest rank of a class represents all of them.
struct ClockPlace {
  int rank = 0;
  int ranks = 1;
  int program = 0;  ///< in World::programs.items
  int costs = 0;    ///< in World::costs
  double slow_compute = 1, slow_links = 1;
};

struct World {
  Programs programs;
  std::vector<ItemCosts> costs;
  std::vector<ClockPlace> clocks;
  std::vector<int> clock_of_rank;

  /// By clock and family: its group, or -1.
  std::vector<int> group_of;
  /// By group: its lane, and its members (clocks) from members[first_member[group]] on.
  std::vector<Lane> lane_of_group;
  std::vector<int> first_member, members;
  /// By clock and index of peer: the peer's clock, or -1.
  std::vector<int> peer_of;
  size_t most_peers = 0;

  const LaneItems& ItemsOf(int clock) const {
    return programs.items[static_cast<size_t>(clocks[static_cast<size_t>(clock)].program)];
  }
  int GroupOf(int clock, int family) const {
    return group_of[static_cast<size_t>(clock) * programs.families.size() + static_cast<size_t>(family)];
  }
  int PeerOf(int clock, int index) const {
    return peer_of[static_cast<size_t>(clock) * most_peers + static_cast<size_t>(index)];
  }
};

/// Costs by place: `cost_of` is called for the lowest rank of every class of equal costs and returns one entry per
/// instruction. Costs of equal programs depend on the places of ranks and on their coordinates on the axes `by`;
/// without it, on neither.
World MakeWorld(const WorldPrograms& programs, int ranks_per_node, std::optional<AxisSet> by,
                const std::function<std::vector<InstructionCost>(int rank)>& cost_of, const SimulateOptions& options);

/// Runs the clocks of a world.
Simulation Run(const World& world, const Cluster& cluster, const SimulateOptions& options);

}  // namespace espalier::simulate
