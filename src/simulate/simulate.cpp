#include "espalier/simulate/simulate.hpp"

#include <algorithm>
#include <tuple>

#include "espalier/util/error.hpp"
#include "simulate/clocks.hpp"

namespace espalier {
namespace simulate {
namespace {

RankTimes TimesOf(const ClockPlace& place, const ClockState& state, const ItemCosts& costs) {
  return {place.rank,  place.ranks, state.items->program->stage, state.end_us,
          state.total, state.parts, costs.by_source_us};
}

Timeline TimelineOf(const World& world, Clocks& clocks) {
  Timeline timeline;
  timeline.origin = "predicted";
  timeline.step_us = clocks.now_us();
  for (size_t c = 0; c < world.clocks.size(); ++c) {
    std::vector<Span>& spans = clocks.spans()[c];
    std::ranges::sort(spans, [](const Span& a, const Span& b) {
      return std::tie(a.end_us, a.instruction) < std::tie(b.end_us, b.instruction);
    });
    const ClockPlace& place = world.clocks[c];
    timeline.tracks.push_back({place.rank, place.ranks, clocks.states()[c].items->program, std::move(spans)});
  }
  return timeline;
}

}  // namespace

Simulation Run(const World& world, const Cluster& cluster, const SimulateOptions& options) {
  Clocks clocks(world, cluster, options);
  clocks.Run();
  Simulation simulation;
  simulation.step_us = clocks.now_us();
  simulation.events = clocks.finished();
  simulation.class_of_rank = world.clock_of_rank;
  for (size_t c = 0; c < world.clocks.size(); ++c)
    simulation.classes.push_back(
        TimesOf(world.clocks[c], clocks.states()[c], world.costs[static_cast<size_t>(world.clocks[c].costs)]));
  if (options.record) simulation.timeline = TimelineOf(world, clocks);
  return simulation;
}

}  // namespace simulate

const RankTimes& Simulation::Slowest() const {
  CHECK(!classes.empty(), "a simulation of no ranks");
  return *std::ranges::max_element(classes, {}, &RankTimes::end_us);
}

Simulation Simulate(const WorldPrograms& programs, const std::function<std::vector<InstructionCost>(int rank)>& cost_of,
                    const Cluster& cluster, const SimulateOptions& options) {
  return simulate::Run(simulate::MakeWorld(programs, cluster.NearRanks(), std::nullopt, cost_of, options), cluster,
                       options);
}

}  // namespace espalier
