#include "staged_executor.hpp"

#include "espalier/util/error.hpp"
#include "ranges.hpp"

namespace espalier::cuda {
namespace {

int64_t BytesOf(const Tensor& tensor) { return Volume(tensor.shape) * SizeOf(tensor.dtype); }

}  // namespace

StagedExecutor::StagedExecutor(const Program& program, const Coordinate& coordinate, Arena& arena, Streams& streams,
                               Communication& communication, int device, Abort abort)
    : CudaExecutor(program, coordinate, arena, streams, std::move(abort)),
      communication_(communication),
      device_(device),
      progress_(static_cast<int>(calls_.size())) {
  if (exchanges_.empty()) return;
  mirror_ = std::make_unique<HostMirror>(arena, exchanges_);
  std::vector<CommInstruction> mirrored;
  for (const CommInstruction& exchange : exchanges_) {
    mirrored.push_back(mirror_->Of(exchange));
    mirrored.back().before = [this, &exchange] { Fetch(exchange); };
    mirrored.back().after = [this, &exchange] { Deliver(exchange); };
  }
  comm_ = communication.Prepare(program, coordinate, std::move(mirrored));
}

void StagedExecutor::IssueStep(cudaEvent_t began) {
  lanes_.Reset();
  // The previous step may still run; its outputs must not be copied before they are written.
  CUDA_CALL(cudaStreamWaitEvent(streams_.Of(Lane::kCopy), began, 0));
  if (comm_ != nullptr) communication_.Start(*comm_, lanes_);
  progress_.Begin(streams_.Compute());
  int issued = 0;
  JobRanges jobs(program_);
  for (const Call& call : calls_) {
    jobs.Enter(call.index);
    AwaitLanes(call.waits);
    IssueKernel(call);
    events_.Issued(Lane::kCompute, ++issued, streams_.Compute());
    lanes_.Raise(Lane::kCompute);
    if (issued % DeviceProgress::kSignOfLife == 0) progress_.Finished(Lane::kCompute, issued, streams_.Compute());
  }
  AwaitLanes(ends_);
  if (comm_ != nullptr) communication_.Finish();
}

void StagedExecutor::ShowProgress() {
  lanes_.progress().alive.store(progress_.Done(Lane::kCompute), std::memory_order_relaxed);
}

void StagedExecutor::AwaitLanes(std::span<const Wait> waits) {
  if (lanes_.Met(waits)) return;
  MarkWait();
  for (const Wait& wait : waits) lanes_.Await(wait);
  MarkWait();
}

void StagedExecutor::Fetch(const CommInstruction& instruction) {
  CUDA_CALL(cudaSetDevice(device_));  // sets the device of this thread
  const cudaStream_t copy = streams_.Of(Lane::kCopy);
  for (const Wait& wait : instruction.instruction->waits)
    if (wait.lane == Lane::kCompute) events_.Await(wait, copy);
  if (Clock() != nullptr) Clock()->Begins(instruction.index, copy);
  for (const Tensor& input : instruction.inputs)
    CUDA_CALL(cudaMemcpyAsync(mirror_->Of(input.data), input.data, static_cast<size_t>(BytesOf(input)),
                              cudaMemcpyDeviceToHost, copy));
  CUDA_CALL(cudaStreamSynchronize(copy));
}

void StagedExecutor::Deliver(const CommInstruction& instruction) {
  const cudaStream_t copy = streams_.Of(Lane::kCopy);
  for (const Tensor& output : instruction.outputs)
    CUDA_CALL(cudaMemcpyAsync(output.data, mirror_->Of(output.data), static_cast<size_t>(BytesOf(output)),
                              cudaMemcpyHostToDevice, copy));
  if (Clock() != nullptr) Clock()->Ends(instruction.index, copy);
  CUDA_CALL(cudaStreamSynchronize(copy));
}

}  // namespace espalier::cuda
