// A program on a GPU, alone or with NCCL. Lanes are streams and waits are events. The calling thread walks the program
// once and issues kernels and communication; nothing in a step waits on the host. From the second step on, the whole
// step is a captured CUDA graph; ESPALIER_CUDA_GRAPH=0 issues every step anew, and so does a run whose step cannot be
// captured.
#pragma once

#include <memory>

#include "cuda_executor.hpp"
#include "device_progress.hpp"
#include "espalier/comm/stream_communication.hpp"

namespace espalier::cuda {

class StreamExecutor final : public CudaExecutor {
 public:
  /// `communication` may be null if nothing communicates. All arguments must outlive the executor.
  StreamExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory, Streams& streams,
                 StreamCommunication* communication, Abort abort);
  ~StreamExecutor() override;

  void ShowProgress() override;

 private:
  void BeforeStep() override;
  void IssueStep(cudaEvent_t began) override;
  void Look() override;
  void Abandon() override;

  bool MayCapture() const;
  /// False if the step cannot be captured, which is noted as a fallback.
  bool Capture();
  /// After an error during capture; `graph` may be incomplete.
  void GiveUpCapture(cudaGraph_t graph, const std::string& why);
  /// Issues the step; without wait marks while it is captured.
  void Issue(bool captured);
  /// The `exchange`-th communication instruction, `index` in the program.
  void IssueExchange(size_t exchange, int index, cudaStream_t stream);
  void Fork();
  void Join();
  void Finished(Lane lane, int count, cudaStream_t stream);

  StreamCommunication* communication_;
  std::unique_ptr<PreparedComm> comm_;
  DeviceProgress progress_;
  Event fork_{Timing::kOff}, join_{Timing::kOff}, computed_{Timing::kOff};
  bool counts_beside_ = false;  ///< the current step uses the progress stream
  cudaGraphExec_t graph_ = nullptr;
  bool graphs_;  ///< captured steps are requested, and no capture has failed
};

}  // namespace espalier::cuda
