// Communication whose order is that of streams, between GPUs: the host only issues it. Beside it `Communication` is for
// transports whose messages a thread of this host moves.
#pragma once

#include <memory>
#include <vector>

#include "espalier/comm/communicator.hpp"

namespace espalier {

/// Issued by one thread, in program order over all lanes; nothing waits on the host.
class StreamCommunication {
 public:
  virtual ~StreamCommunication() = default;

  /// As Communication::Prepare; `instructions` in program order, their memory the device's. Outside a step, and
  /// collective: all ranks prepare the same programs, one after the other.
  virtual std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                                std::vector<CommInstruction> instructions) = 0;

  /// Issues the k-th of the prepared instructions on `stream` (a cudaStream_t, that of its lane) and returns at once.
  /// Throws std::runtime_error with the instruction's label.
  virtual void Issue(PreparedComm& prepared, size_t k, void* stream) = 0;

  /// Throws what was reported of operations under way.
  virtual void CheckErrors() = 0;

  /// Ends what is under way, so that the process can exit. Nothing may be issued afterwards.
  virtual void Abort() = 0;
};

/// Makes the communicators of `channels` on this thread's device: collective, with the same list on all ranks
/// (AgreeOnChannels). With `force_one_rank_groups` each is this rank alone, and every message goes to itself: so that
/// all calls run on one device; values are then not those of the program. In the module for GPUs only.
std::unique_ptr<StreamCommunication> MakeNcclCommunication(World& world, const Mesh& mesh,
                                                           const std::vector<Channel>& channels,
                                                           bool force_one_rank_groups);

}  // namespace espalier
