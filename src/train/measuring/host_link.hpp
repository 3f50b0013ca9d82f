// The link between a device and the memory of its node, measured.
#pragma once

#include "espalier/comm/world.hpp"
#include "espalier/costs/cluster.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// Rates of copies of 64 MiB between an arena of the device and one on the host, and the time in which a copy of a byte
/// begins and ends: of each rank of a node by itself. Then all ranks copy at the same time, which shows what they
/// share: the memory of the node. If a GPU's copies are about as fast then, no limit of that memory is known. On CPUs
/// both arenas are in that memory, and each rank copies both ways. Ranks fill nodes in order. Collective; rank 0 has
/// the result. Throws UserError (kDoesNotFit) if there is no room for the arenas.
Cluster::Host MeasureHostLink(Device& device, World& world, int ranks_per_node);

}  // namespace espalier
