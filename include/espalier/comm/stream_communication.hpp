// The interface of transports on streams, between GPUs (NCCL): the host only issues operations, and the streams order
// them. Transports that a thread of the host drives: communication.hpp.
#pragma once

#include <memory>
#include <vector>

#include "espalier/comm/communication.hpp"

namespace espalier {

/// Issued by one thread, in program order over all lanes; nothing waits on the host.
class StreamCommunication {
 public:
  virtual ~StreamCommunication() = default;

  /// Like Communication::Prepare; `instructions` in program order, in device memory. Outside a step, and collective:
  /// all ranks prepare the same programs in the same order.
  virtual std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                                std::vector<CommInstruction> instructions) = 0;

  /// Issues the k-th prepared instruction on `stream` (the cudaStream_t of its lane) and returns at once. Throws
  /// std::runtime_error with the label of the instruction.
  virtual void Issue(PreparedComm& prepared, size_t k, void* stream) = 0;

  /// Throws if an operation in flight has reported an error.
  virtual void CheckErrors() = 0;

  /// Aborts operations in flight, so that the process can exit. Nothing may be issued afterwards.
  virtual void Abort() = 0;
};

struct NcclOptions {
  /// Every group is this rank alone, which sends every message to itself, so that all calls run on one device; the
  /// values are then wrong.
  bool alone = false;
  /// The largest number of thread blocks that the messages of a lane occupy on a GPU, which is the number of
  /// multiprocessors that compute kernels lose. The copy lane occupies none.
  ByLane<int> ctas = {0, 16, 8, 8, 4, 4, 0};
};

/// Makes the communicators of `channels` on this thread's device. Collective, with the same list on all ranks
/// (AgreeOnChannels). In the CUDA module only.
std::unique_ptr<StreamCommunication> MakeNcclCommunication(World& world, const Mesh& mesh,
                                                           const std::vector<Channel>& channels,
                                                           const NcclOptions& options);

}  // namespace espalier
