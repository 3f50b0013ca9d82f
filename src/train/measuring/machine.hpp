// This machine as a cluster file, and files to which its measurements are added.
#pragma once

#include <optional>
#include <string>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/costs/cluster.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// The identity that a cluster file must share to take rows of this machine: kind and name of the device, ranks per
/// node. The name includes everything that changes times: processor or GPU, libraries, threads.
struct MachineKey {
  DeviceKind device = DeviceKind::kCpu;
  std::string name;
  int ranks_per_node = 1;
};
MachineKey KeyOfMachine(const Device& device, const MpiWorld* mpi);

/// STREAM's triad (McCalpin 1995) with the kernel that adds: a = b + c of 64 MiB each, the best of a few. Bytes per us.
double MemoryRate();

/// The machine without rows: peak rates and memory bandwidth, measured on all ranks at the same time; unknown values
/// stay 0. Collective; rank 0 has the result.
Cluster DescribeMachine(const Device& device, World& world, const MpiWorld* mpi);

/// The file at `path`, or nothing if there is none. Throws UserError (kDeck), with a remedy, if it cannot be read or
/// describes another machine.
std::optional<Cluster> LoadForMachine(const std::string& path, const MachineKey& machine);

/// Throws UserError (kFault) if the peak or the memory bandwidth is unknown: no formula would be valid.
void RequireRates(const Cluster& cluster);

/// Replaces the rows of the cluster file at `cluster.path` with the rows of `cluster`; other lines and comments stay if
/// they come before the rows. Makes a new file if there is none. By one rename. Throws UserError (kFault).
void WriteRows(const Cluster& cluster);

}  // namespace espalier
