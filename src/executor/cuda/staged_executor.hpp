// A program on a GPU whose messages travel over MPI, through memory of the host: so that ranks may share a GPU, and
// where there is no NCCL between them.
#pragma once

#include <memory>
#include <vector>

#include "cuda_executor.hpp"
#include "device_progress.hpp"
#include "host_mirror.hpp"

namespace espalier::cuda {

/// The communication thread works on a mirror of the arena: before an instruction's messages start its inputs are
/// copied there, after they have arrived its outputs are copied back, and only then is its lane raised. Both block that
/// thread until the device has done them. That cannot be a deadlock: the issuing thread awaits lanes on the host before
/// it issues what needs them, so nothing that the compute stream holds waits for communication, and it runs empty
/// whatever that thread does. A lane's wait for n instructions of the compute lane is met once these are issued; the
/// copy's stream then waits for their event.
class StagedExecutor final : public CudaExecutor {
 public:
  /// `device`: what cudaSetDevice knows this rank's GPU by. All arguments must outlive it.
  StagedExecutor(const Program& program, const Coordinate& coordinate, Arena& arena, Streams& streams,
                 Communication& communication, int device, Abort abort);

  /// Counts say what is issued to the compute lane: beside them, that the device lives.
  void ShowProgress() override;

 private:
  void IssueStep(cudaEvent_t began) override;
  void Abandon() override { communication_.Finish(); }

  void AwaitLanes(std::span<const Wait> waits);
  /// Of the communication thread: inputs to the mirror, outputs from it.
  void Fetch(const CommInstruction& instruction);
  void Deliver(const CommInstruction& instruction);

  Communication& communication_;
  int device_;
  DeviceProgress progress_;
  std::unique_ptr<HostMirror> mirror_;
  std::unique_ptr<PreparedComm> comm_;
};

}  // namespace espalier::cuda
