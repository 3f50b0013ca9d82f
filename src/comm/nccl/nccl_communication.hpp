// Communication over NCCL: an instruction becomes launches on its lane's stream: pieces are packed by a kernel, travel
// as one group of sends and receives or as one collective of the library, and are unpacked or joined by a kernel.
#pragma once

#include "communicators.hpp"
#include "espalier/comm/stream_communication.hpp"
#include "tables.hpp"

namespace espalier::cuda {

/// Which instructions may become collectives of the library: ESPALIER_NCCL_NATIVE=0 makes all of them exchanges, whose
/// sums are those of the MPI transport bit by bit.
enum class Native : uint8_t { kWhereItFits, kNever };

class NcclCommunication final : public StreamCommunication {
 public:
  /// As MakeNcclCommunication.
  NcclCommunication(World& world, const Mesh& mesh, const std::vector<Channel>& channels, bool force_one_rank_groups,
                    Native native);

  std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                        std::vector<CommInstruction> instructions) override;
  void Issue(PreparedComm& prepared, size_t k, void* stream) override;
  void CheckErrors() override { communicators_.CheckErrors(); }
  void Abort() override { communicators_.Abort(); }

 private:
  Communicators communicators_;
  Native native_;
};

}  // namespace espalier::cuda
