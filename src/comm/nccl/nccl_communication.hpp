// Communication over NCCL. An instruction becomes launches on its lane's stream: a kernel packs the messages, they
// travel as one group of sends and receives or as one collective of NCCL, and a kernel unpacks or reduces them.
#pragma once

#include "communicators.hpp"
#include "espalier/comm/stream_communication.hpp"
#include "job_tables.hpp"

namespace espalier::cuda {

/// Which instructions become NCCL collectives. With ESPALIER_NCCL_NATIVE=0 all are exchanges, whose sums equal the MPI
/// transport's bit by bit.
enum class LibraryCollectives : uint8_t { kWhereTheyFit, kNever };

class NcclCommunication final : public StreamCommunication {
 public:
  /// As MakeNcclCommunication.
  NcclCommunication(World& world, const Mesh& mesh, const std::vector<Channel>& channels, const NcclOptions& options,
                    LibraryCollectives library_collectives);

  std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                        std::vector<CommInstruction> instructions) override;
  void Issue(PreparedComm& prepared, size_t k, void* stream) override;
  void CheckErrors() override { communicators_.CheckErrors(); }
  void Abort() override { communicators_.Abort(); }

 private:
  Communicators communicators_;
  LibraryCollectives library_collectives_;
};

}  // namespace espalier::cuda
