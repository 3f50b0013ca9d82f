#include "simulate/world.hpp"

namespace espalier {

Simulation Simulate(const WorldPrograms& programs, const Costs& costs, const SimulateOptions& options) {
  const auto cost_of = [&](int rank) {
    const int representative = programs.representative[static_cast<size_t>(rank)];
    return CostInstructions(costs, *programs.program_of(representative), programs.mesh.CoordinateOf(rank));
  };
  const AxisSet routing = RoutingAxes(costs, *programs.program_of(programs.representative.at(0)));
  const simulate::World world = simulate::MakeWorld(programs, costs.cluster().NearRanks(), routing, cost_of, options);
  return simulate::Run(world, costs.cluster(), options);
}

}  // namespace espalier
