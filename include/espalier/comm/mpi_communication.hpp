// Communication over MPI. One thread per rank makes the MPI calls of a step: the next instruction of every lane starts
// when its waits are met; the thread posts its messages and polls until they have arrived. The thread starts with the
// first program that communicates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/communication.hpp"
#include "espalier/comm/mpi_world.hpp"

namespace espalier {

struct MpiCommunicationOptions {
  /// Longer messages are split, since MPI counts in int.
  int64_t largest_part = int64_t{1} << 30;
  /// Called with the error message by the thread that failed; should end the job. If it returns or throws, Finish()
  /// throws. Default: MpiWorld::Fail.
  std::function<void(const std::string& message)> abort;
};

class MpiCommunication final : public Communication {
 public:
  /// Makes the communicators of `channels`. Collective, with the same list on all ranks (AgreeOnChannels). `world` must
  /// outlive it.
  MpiCommunication(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels,
                   MpiCommunicationOptions options = {});
  ~MpiCommunication() override;

  std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                        std::vector<CommInstruction> instructions) override;
  void Start(PreparedComm& prepared, LaneCounts& lanes) override;
  void Finish() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
