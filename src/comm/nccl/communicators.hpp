// The communicators of NCCL: one for each group and lane, and one of two ranks for each ordered pair of stages, so that
// a send meets its receive although they are issued on different lanes.
#pragma once

#include <nccl.h>

#include <map>
#include <utility>
#include <vector>

#include "espalier/comm/communication.hpp"

namespace espalier::cuda {

class Communicators {
 public:
  /// The stages of sender and receiver.
  using Pair = std::pair<int, int>;

  /// Makes the communicators of groups. Collective, with the same channels on all ranks. `alone`: every communicator
  /// has this rank only, and nothing is collective. `world` must outlive it.
  Communicators(World& world, const Mesh& mesh, const std::vector<Channel>& channels, bool alone);
  /// Waits for operations that were issued; aborts instead while an exception unwinds, since peers may never come.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Makes the communicators of pairs that any rank names and that do not exist yet. Collective.
  void MakePairs(const std::vector<Pair>& mine);

  /// CHECKs that the communicator was made.
  ncclComm_t Of(const Channel& channel) const;
  /// Member 0 sends, member 1 receives.
  ncclComm_t Of(Pair stages) const;

  bool alone() const { return alone_; }

  /// Throws the first error that NCCL reports for any communicator.
  void CheckErrors() const;
  /// Aborts all communicators, newest first. Nothing may be issued afterwards.
  void Abort();

 private:
  std::vector<Pair> PairsOfAllRanks(const std::vector<Pair>& mine);
  ncclComm_t MakeWorld();
  ncclComm_t MakeAlone(Lane lane);
  ncclComm_t MakeGroup(const Channel& channel);
  ncclComm_t MakePair(Pair stages);
  ncclComm_t Split(int color, int key, Lane lane);
  ncclComm_t Keep(ncclComm_t comm);

  World& world_;
  Mesh mesh_;
  bool alone_;
  int exceptions_at_start_;
  ncclComm_t world_comm_ = nullptr;  ///< the others are split from it; no messages of its own
  std::map<Channel, ncclComm_t> groups_;
  std::map<Pair, ncclComm_t> pairs_;
  std::vector<ncclComm_t> made_;  ///< in the order in which they were made
};

}  // namespace espalier::cuda
