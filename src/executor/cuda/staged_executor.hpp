// A program on a GPU whose messages use MPI, staged through host memory: for ranks that share a GPU, or without NCCL.
#pragma once

#include <memory>
#include <vector>

#include "cuda_executor.hpp"
#include "device_progress.hpp"
#include "host_mirror.hpp"

namespace espalier::cuda {

/// The communication thread works on a mirror of the arena. It copies the inputs of an instruction there before its
/// messages start, copies the outputs back after they have arrived, and only then advances the lane. Both copies block
/// this thread until the device has done them. That cannot deadlock: the issuing thread waits for lanes on the host
/// before it issues the instructions that need them, so nothing on the compute stream waits for communication, and the
/// stream always drains. A lane's wait for n instructions of the compute lane is met once these are issued; the copy
/// stream then waits for their event.
class StagedExecutor final : public CudaExecutor {
 public:
  /// `device`: the index of this rank's GPU for cudaSetDevice. All arguments must outlive the executor.
  StagedExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory, Streams& streams,
                 Communication& communication, int device, Abort abort);

  /// The compute lane's count shows issued instructions; this adds a sign of life of the device.
  void ShowProgress() override;

 private:
  void IssueStep(cudaEvent_t began) override;
  void Abandon() override { communication_.Finish(); }

  /// Awaits messages on the host; lanes that are streams are met as soon as they are issued.
  void AwaitLanes(std::span<const Wait> waits);
  void JoinCopies();
  /// On the communication thread: copy inputs to the mirror, and outputs from it.
  void Fetch(const CommInstruction& instruction);
  void Deliver(const CommInstruction& instruction);

  Communication& communication_;
  int device_;
  DeviceProgress progress_;
  Event join_{Timing::kOff};
  std::unique_ptr<HostMirror> mirror_;
  std::unique_ptr<PreparedComm> comm_;
};

}  // namespace espalier::cuda
