// NCCL's communicators: one for each group and lane, and one of two ranks for each ordered pair of stages, so that a
// send meets its receive though they are issued on different lanes.
#pragma once

#include <nccl.h>

#include <map>
#include <utility>
#include <vector>

#include "espalier/comm/communicator.hpp"

namespace espalier::cuda {

class Communicators {
 public:
  /// Sender and receiver.
  using Pair = std::pair<int, int>;

  /// Collective, with the same channels on all ranks; those of pairs are made by MakePairs. `alone`: each is of this
  /// rank only, and nothing is collective. `world` must outlive it.
  Communicators(World& world, const Mesh& mesh, const std::vector<Channel>& channels, bool alone);
  /// Waits for what was issued; while an exception unwinds, aborts instead, since peers may never come.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Makes what this and other ranks want beyond what there is. Collective.
  void MakePairs(const std::vector<Pair>& mine);

  /// CHECKs that it was made.
  ncclComm_t Of(const Channel& channel) const;
  /// Its rank 0 sends, its rank 1 receives.
  ncclComm_t Of(Pair stages) const;

  bool alone() const { return alone_; }

  /// Throws what NCCL reports of any of them.
  void CheckErrors() const;
  /// Ends them all, newest first. Nothing may be issued afterwards.
  void Abort();

 private:
  std::vector<Pair> Agree(const std::vector<Pair>& mine);
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
  ncclComm_t world_comm_ = nullptr;  ///< parent of the others; carries nothing itself
  std::map<Channel, ncclComm_t> groups_;
  std::map<Pair, ncclComm_t> pairs_;
  std::vector<ncclComm_t> made_;  ///< in this order
};

}  // namespace espalier::cuda
