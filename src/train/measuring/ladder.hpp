// Times of messages and collectives by size, on an otherwise idle machine.
#pragma once

#include <functional>
#include <memory>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/costs/cluster.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// Opens the device of this rank. Collective.
using OpenDevice = std::function<std::unique_ptr<Device>()>;

/// The places of groups that a job of this size can have: groups of 2, 4, 8, ... neighbours and of all ranks, and with
/// several ranks on each of several nodes, groups with one rank on each node. Each place has a mesh whose dp_shard
/// groups have this place.
struct LadderPlace {
  Mesh mesh;
  GroupPlace place;
};
std::vector<LadderPlace> LadderPlaces(int ranks, int ranks_per_node);

/// Runs every kind of collective in every place, and a message between neighbours, with 1 KiB to `most_bytes` that each
/// member sends; takes medians of several consecutive runs. All groups of a place run at the same time. Collective;
/// rank 0 has the table. Empty with one rank.
CostTable MeasureTransfers(World& world, MpiWorld* mpi, const OpenDevice& open, int64_t most_bytes = int64_t{64} << 20);

/// Sets `cluster.node` and `cluster.network` from measured transfers, if there are any.
void SetLinks(Cluster& cluster);

}  // namespace espalier
