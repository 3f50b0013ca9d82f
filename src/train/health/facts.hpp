// Facts that one rank finds out about its node.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "train/health/gpus.hpp"

namespace espalier {

struct RankFacts {
  std::string host;
  int node = 0;                ///< lowest rank of its node
  std::vector<int> cores;      ///< that this process may use
  int numa_nodes = 0;          ///< with some of these cores; 0: the system does not say
  int64_t free_bytes = 0;      ///< memory that this process may take
  double clock_mhz = 0;        ///< mean of its cores; 0: the system does not say
  double gflops = 0;           ///< of fp32 matmuls on one core, while all ranks compute
  double memory_rate = 0;      ///< bytes per us of one core, while all ranks read and write
  std::vector<GpuFacts> gpus;  ///< of the node, from its lowest rank
  std::string gpu_problem;

  auto Fields() {
    return std::tie(host, node, cores, numa_nodes, free_bytes, clock_mhz, gflops, memory_rate, gpus, gpu_problem);
  }
};

/// Collective: all ranks measure at the same time. `mpi` is null in a world of one.
RankFacts MeasureFacts(World& world, const MpiWorld* mpi);

}  // namespace espalier
