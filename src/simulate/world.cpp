#include "simulate/world.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier::simulate {
namespace {

Programs ReadPrograms(const WorldPrograms& world) {
  Programs programs;
  CHECK(std::ssize(world.representative) == world.mesh.Ranks(), "programs of {} ranks for a mesh of {}",
        world.representative.size(), world.mesh.Ranks());
  std::map<int, int> number;
  for (int representative : world.representative) {
    const auto [it, fresh] = number.try_emplace(representative, static_cast<int>(number.size()));
    if (fresh) programs.items.push_back(ReadLanes(world.program_of(representative), programs.families));
    programs.of_rank.push_back(it->second);
  }
  return programs;
}

ItemCosts InLaneOrder(const LaneItems& items, const std::vector<InstructionCost>& costs, int rank) {
  CHECK(costs.size() == items.items.size(), "{} costs for the {} instructions of rank {}", costs.size(),
        items.items.size(), rank);
  ItemCosts in_order;
  in_order.of_item.reserve(costs.size());
  std::map<std::tuple<double, Port, double>, uint32_t> numbers;
  std::vector<uint32_t> last(items.program->graph->ops.size(), 0);  // by op: number of its last cost
  for (size_t i = 0; i < items.items.size(); ++i) {
    const int instruction = items.instruction[i];
    const InstructionCost& cost = costs[static_cast<size_t>(instruction)];
    CHECK(std::isfinite(cost.us) && cost.us >= 0, "{} of rank {} takes {} us", Describe(*items.program, instruction),
          rank, cost.us);
    const auto key = [](const InstructionCost& c) { return std::tuple(c.us, c.port, c.beside); };
    uint32_t& number = last[static_cast<size_t>(items.items[i].op)];
    if (number >= in_order.different.size() || key(in_order.different[number]) != key(cost)) {
      const auto [known, fresh] = numbers.try_emplace(key(cost), static_cast<uint32_t>(in_order.different.size()));
      if (fresh) in_order.different.push_back(cost);
      number = known->second;
    }
    in_order.of_item.push_back(number);
  }
  for (const InstructionCost& cost : costs) in_order.by_source_us[cost.source] += cost.us;
  return in_order;
}

/// The slow-down factor of every rank.
std::vector<double> FactorsOf(Slow::What what, int ranks, const std::vector<Slow>& slow) {
  std::vector<double> factors(static_cast<size_t>(ranks), 1);
  for (const Slow& s : slow) {
    CHECK(0 <= s.first_rank && s.first_rank <= s.last_rank && s.last_rank < ranks, "slow ranks {} to {} of {} ranks",
          s.first_rank, s.last_rank, ranks);
    CHECK(std::isfinite(s.factor) && s.factor > 0, "a factor of {} on ranks {} to {}", s.factor, s.first_rank,
          s.last_rank);
    if (s.what != what) continue;
    for (int rank = s.first_rank; rank <= s.last_rank; ++rank) factors[static_cast<size_t>(rank)] *= s.factor;
  }
  return factors;
}

Colours SplitByFactors(Colours colours, const std::vector<double>& factors) {
  std::map<double, int> numbers;
  colours.Split([&](int rank) {
    return numbers.try_emplace(factors[static_cast<size_t>(rank)], static_cast<int>(numbers.size())).first->second;
  });
  return colours;
}

/// Connects the groups and peers of all clocks.
class Linker {
 public:
  Linker(const Lattice& lattice, World& world) : lattice_(lattice), world_(world) {}

  void Run() {
    const size_t families = world_.programs.families.size();
    world_.group_of.assign(world_.clocks.size() * families, -1);
    for (size_t family = 0; family < families; ++family) LinkFamily(family);
    world_.first_member.push_back(static_cast<int>(world_.members.size()));
    LinkPeers();
  }

 private:
  /// A clock whose family has no group yet makes one from the clocks of its members. These have the same group: the
  /// partition is equitable.
  void LinkFamily(size_t family) {
    const auto& [lane, axes] = world_.programs.families[family];
    const std::vector<int> offsets = lattice_.Offsets(axes), lowest = lattice_.LowestOfGroup(axes);
    const size_t families = world_.programs.families.size();
    std::vector<int> members;
    for (size_t clock = 0; clock < world_.clocks.size(); ++clock) {
      if ((world_.ItemsOf(static_cast<int>(clock)).families >> family & 1) == 0) continue;
      if (world_.group_of[clock * families + family] >= 0) continue;
      members.clear();
      const int base = lowest[static_cast<size_t>(world_.clocks[clock].rank)];
      for (int offset : offsets) members.push_back(world_.clock_of_rank[static_cast<size_t>(base + offset)]);
      std::sort(members.begin(), members.end());
      members.erase(std::unique(members.begin(), members.end()), members.end());
      const int group = static_cast<int>(world_.lane_of_group.size());
      world_.lane_of_group.push_back(lane);
      world_.first_member.push_back(static_cast<int>(world_.members.size()));
      world_.members.insert(world_.members.end(), members.begin(), members.end());
      for (int member : members) world_.group_of[static_cast<size_t>(member) * families + family] = group;
    }
  }

  void LinkPeers() {
    for (const LaneItems& items : world_.programs.items)
      world_.most_peers = std::max(world_.most_peers, items.peers.size());
    world_.peer_of.assign(world_.clocks.size() * world_.most_peers, -1);
    for (size_t clock = 0; clock < world_.clocks.size(); ++clock) {
      const std::vector<int>& peers = world_.ItemsOf(static_cast<int>(clock)).peers;
      for (size_t i = 0; i < peers.size(); ++i)
        world_.peer_of[clock * world_.most_peers + i] =
            world_.clock_of_rank[static_cast<size_t>(lattice_.AtStage(world_.clocks[clock].rank, peers[i]))];
    }
  }

  const Lattice& lattice_;
  World& world_;
};

}  // namespace

World MakeWorld(const WorldPrograms& programs, int ranks_per_node, std::optional<AxisSet> by,
                const std::function<std::vector<InstructionCost>(int rank)>& cost_of, const SimulateOptions& options) {
  World world;
  world.programs = ReadPrograms(programs);
  const Lattice lattice(programs.mesh, ranks_per_node);
  const int ranks = lattice.Ranks();
  Colours costs(ranks);
  if (by)
    costs = SplitByCosts(lattice, world.programs, *by);
  else
    costs.Split([&](int rank) { return world.programs.of_rank[static_cast<size_t>(rank)]; });
  for (int rank : costs.LowestRanks()) world.costs.push_back(InLaneOrder(world.programs.Of(rank), cost_of(rank), rank));

  const std::vector<double> compute = FactorsOf(Slow::What::kCompute, ranks, options.slow),
                            links = FactorsOf(Slow::What::kLinks, ranks, options.slow);
  const bool fold = options.fold && options.jitter == 0;
  const Colours colours = fold ? Fold(lattice, world.programs, SplitByFactors(SplitByFactors(costs, compute), links))
                               : Colours::Distinct(ranks);
  world.clock_of_rank = colours.OfRanks();
  for (int rank : colours.LowestRanks()) {
    const auto r = static_cast<size_t>(rank);
    world.clocks.push_back({rank, 0, world.programs.of_rank[r], costs.Of(rank), compute[r], links[r]});
  }
  for (int clock : world.clock_of_rank) ++world.clocks[static_cast<size_t>(clock)].ranks;
  Linker(lattice, world).Run();
  return world;
}

}  // namespace espalier::simulate
