// How a value gets from any placements to any others, and what that costs.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"

namespace espalier {

/// One step of a reshard: a collective, or a local slice or pad, with the placements after it.
struct ReshardStep {
  OpKind kind = OpKind::kNone;
  AxisSet axes;
  Placements placements;
};
/// The steps with the least traffic from any placements to any others. (Scalars cannot be made partial.)
std::vector<ReshardStep> PlanReshard(const Type& from, const Placements& to, const Mesh& mesh);

/// Elements that a rank sends for a change of placements, where sizes divide evenly (the engine's measure of traffic).
int64_t ReshardTraffic(const Type& from, const Placements& to, const Mesh& mesh);

}  // namespace espalier
