#include "train/health/facts.hpp"

#include <algorithm>
#include <filesystem>

#include "espalier/executor/peak_rate.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/memory.hpp"
#include "train/health/clocks.hpp"
#include "train/measuring/machine.hpp"

namespace espalier {
namespace {

/// How many folders /sys/devices/system/node/nodeN have a link to one of the cores.
int CountNumaNodes(const std::vector<int>& cores) {
  namespace fs = std::filesystem;
  std::error_code none;
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != name.npos) continue;
    count += std::ranges::any_of(
        cores, [&](int core) { return fs::exists(entry.path() / ("cpu" + std::to_string(core)), none); });
  }
  return count;
}

}  // namespace

RankFacts MeasureFacts(World& world, const MpiWorld* mpi) {
  RankFacts facts;
  facts.host = HostName();
  facts.node = mpi == nullptr ? 0 : mpi->NodeMembers().front();
  facts.cores = CoresOfThis().cores;
  facts.numa_nodes = CountNumaNodes(facts.cores);
  facts.free_bytes = AvailableMemory();
  world.Barrier();
  facts.gflops = MeasureCpuPeak(Dtype::kF32, 1).flops * 1e-9;
  facts.clock_mhz = MeanClock(facts.cores);
  world.Barrier();
  facts.memory_rate = MemoryRate();
  if (facts.node == world.Rank()) {
    NodeGpus found = ReadGpus();
    facts.gpus = std::move(found.gpus);
    facts.gpu_problem = std::move(found.problem);
  }
  return facts;
}

}  // namespace espalier
