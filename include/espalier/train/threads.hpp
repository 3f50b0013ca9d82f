// How many threads each rank computes with.
#pragma once

#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// The cores that a rank may use, and the number of threads that its environment asks for.
struct CoresOfRank {
  std::string node;        ///< equal where ranks share cores
  std::vector<int> cores;  ///< affinity, rising
  int node_cores = 1;      ///< cores of the node
  int asked = 0;           ///< OMP_NUM_THREADS; 0: unset

  auto Fields() { return std::tie(node, cores, node_cores, asked); }
};

/// The cores of this process.
CoresOfRank CoresOfThis();

struct Threads {
  int count = 1;       ///< per rank, the same on all: the slowest rank sets the pace
  int cores = 0;       ///< cores that all ranks together may use, on rank 0; 0: unknown, or no thread computes
  std::string notice;  ///< a line for the user if the number may surprise; otherwise empty
};

/// run.threads, otherwise OMP_NUM_THREADS, otherwise the rank's share of its available cores: a core that k ranks may
/// use counts 1/k.
Threads ChooseThreads(int64_t run_threads, std::span<const CoresOfRank> ranks);

/// ChooseThreads from the cores of all ranks, with the same result on every rank. Collective.
Threads AgreeOnThreads(const Deck& deck, World& world);

/// Threads for kernels of a process that is alone: run.threads, OMP_NUM_THREADS, or the cores that it may use.
int ThreadCount(const Deck& deck);

/// If kernels will have several threads, and the environment sets no wait policy, executes this program again (exec)
/// with a policy: waiting threads spin only for a moment (GOMP_SPINCOUNT), or not at all if the ranks of this node have
/// more threads than cores (OMP_WAIT_POLICY=passive). GNU OpenMP's default spins for milliseconds, and blocks the cores
/// for the threads, or other programs, that it waits for. OpenMP reads its policy when it is loaded, so it cannot be
/// set later. Must be called before MPI starts. Returns if there is nothing to do.
void WaitBriefly(const Deck& deck);

/// How threads of this process wait, in words: "short spins".
std::string WaitPolicyText();

}  // namespace espalier
