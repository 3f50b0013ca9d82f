// How many threads each rank computes with: from the cores that it may use, and who else may.
#pragma once

#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// The cores that a rank may use, and what its environment asks for.
struct CoresOfRank {
  std::string node;        ///< equal where ranks share cores
  std::vector<int> cores;  ///< affinity, rising
  int node_cores = 1;      ///< that the node has
  int asked = 0;           ///< OMP_NUM_THREADS; 0: unset

  auto Fields() { return std::tie(node, cores, node_cores, asked); }
};

/// Those of this process.
CoresOfRank CoresOfThis();

struct Threads {
  int count = 1;       ///< of each rank: all have the same, since the slowest sets the pace
  std::string notice;  ///< one line for people where the number may surprise; else empty
};

/// run.threads, or else OMP_NUM_THREADS, or else each rank's share of the cores that it may use: a core that k ranks
/// may use counts 1/k.
Threads ChooseThreads(int64_t run_threads, std::span<const CoresOfRank> ranks);

/// The same of all ranks, on every rank. Collective.
Threads AgreeOnThreads(const Deck& deck, World& world);

/// Threads for kernels of a process that is alone: run.threads, OMP_NUM_THREADS, or the cores that it may use.
int ThreadCount(const Deck& deck);

/// Starts this executable anew, in this process, with OMP_WAIT_POLICY=passive, if the ranks of this node will have more
/// threads than cores and the environment sets no policy: OpenMP's threads would wait for one another in loops, and
/// take the cores from those that they wait for. The library reads its policy as it is loaded, so it cannot be set
/// later. Returns if there is nothing to do. Before MPI.
void WaitPassivelyIfCrowded(const Deck& deck);

}  // namespace espalier
