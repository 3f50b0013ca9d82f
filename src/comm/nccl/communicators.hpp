// The communicators of NCCL: one for each group and lane, and one of two ranks for each ordered pair of stages, so that
// a send meets its receive although they are issued on different lanes. Member 0 of each makes the id by which the
// members find one another, and sends it to them over MPI. Each is used once before the first step. No communicator has
// all ranks.
#pragma once

#include <nccl.h>

#include <map>
#include <utility>
#include <vector>

#include "espalier/comm/stream_communication.hpp"

namespace espalier::cuda {

class Communicators {
 public:
  /// The stages of sender and receiver.
  using Pair = std::pair<int, int>;

  /// Makes the communicators of groups. Collective, with the same channels on all ranks, unless each is alone. `world`
  /// must outlive it.
  Communicators(World& world, const Mesh& mesh, const std::vector<Channel>& channels, const NcclOptions& options);
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

  bool alone() const { return options_.alone; }

  /// Throws the first error that NCCL reports for any communicator.
  void CheckErrors() const;
  /// Aborts all communicators, newest first. Nothing may be issued afterwards.
  void Abort();

 private:
  /// The members of a communicator.
  struct Group {
    std::vector<int> ranks;  ///< in the world, by member
    int self = 0;
    Lane lane = Lane::kTp;
  };

  std::vector<Pair> PairsOfAllRanks(const std::vector<Pair>& mine);
  Group GroupOf(const Channel& channel) const;
  Group GroupOf(Pair stages) const;
  /// A communicator for each of `groups`, which this rank is in. Collective: all ranks list theirs in one order.
  std::vector<ncclComm_t> Make(const std::vector<Group>& groups);
  /// The ids of `groups`. Collective.
  std::vector<ncclUniqueId> ShareIds(const std::vector<Group>& groups);
  /// Each member gathers the ranks of all: NCCL connects them in their first call, which would otherwise be one of the
  /// first step, without a limit. Throws if others come.
  void Connect(const std::vector<Group>& groups, const std::vector<ncclComm_t>& made) const;

  World& world_;
  Mesh mesh_;
  NcclOptions options_;
  int exceptions_at_start_;
  std::map<Channel, ncclComm_t> groups_;
  std::map<Pair, ncclComm_t> pairs_;
  std::vector<ncclComm_t> made_;  ///< in the order in which they were made
};

}  // namespace espalier::cuda
