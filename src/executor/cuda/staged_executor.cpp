#include "staged_executor.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"
#include "ranges.hpp"

namespace espalier::cuda {
namespace {

int64_t BytesOf(const Tensor& tensor) { return Volume(tensor.shape) * SizeOf(tensor.dtype); }

}  // namespace

StagedExecutor::StagedExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                               Streams& streams, Communication& communication, int device, Abort abort)
    : CudaExecutor(program, coordinate, memory, streams, std::move(abort)),
      communication_(communication),
      device_(device),
      progress_(static_cast<int>(calls_.size())) {
  if (exchanges_.empty()) return;
  mirror_ = std::make_unique<HostMirror>(memory.device, exchanges_);
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
  // The previous step may still run; what it writes must not be copied before.
  for (const cudaStream_t stream : {streams_.staging.Get(), streams_.Of(Lane::kCopyOut), streams_.Of(Lane::kCopyIn)})
    CUDA_CALL(cudaStreamWaitEvent(stream, began, 0));
  if (comm_ != nullptr) communication_.Start(*comm_, lanes_);
  progress_.Begin(streams_.Compute());
  ByLane<int> issued{};
  JobRanges jobs(program_);
  size_t call = 0, copy = 0;
  for (size_t index = 0; index < program_.instructions.size(); ++index) {
    const Instruction i = program_.instructions[index];
    if (IsMessageLane(i.lane)) continue;
    const cudaStream_t stream = streams_.Of(i.lane);
    jobs.Enter(static_cast<int>(index));
    AwaitLanes(i.waits);
    const bool marks = i.lane == Lane::kCompute &&
                       std::ranges::any_of(i.waits, [](const Wait& wait) { return IsCopyLane(wait.lane); });
    if (marks) MarkWait();
    for (const Wait& wait : i.waits)
      if (!IsMessageLane(wait.lane)) events_.Await(wait, stream);
    if (marks) MarkWait();
    if (IsCopyLane(i.lane))
      IssueCopy(copies_[copy++]);
    else
      IssueKernel(calls_[call++]);
    const int count = ++issued[i.lane];
    events_.Issued(i.lane, count, stream);
    lanes_.Raise(i.lane);
    if (i.lane == Lane::kCompute && count % DeviceProgress::kSignOfLife == 0)
      progress_.Finished(Lane::kCompute, count, stream);
  }
  AwaitLanes(ends_);
  JoinCopies();
  if (comm_ != nullptr) communication_.Finish();
}

/// The step ends on the compute stream.
void StagedExecutor::JoinCopies() {
  for (const Wait& end : ends_) {
    if (!IsCopyLane(end.lane)) continue;
    CUDA_CALL(cudaEventRecord(join_.Get(), streams_.Of(end.lane)));
    CUDA_CALL(cudaStreamWaitEvent(streams_.Compute(), join_.Get(), 0));
  }
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
  const cudaStream_t copy = streams_.staging.Get();
  for (const Wait& wait : instruction.instruction.waits)
    if (!IsMessageLane(wait.lane)) events_.Await(wait, copy);
  if (Clock() != nullptr) Clock()->Begins(instruction.index, copy);
  for (const Tensor& input : instruction.inputs)
    CUDA_CALL(cudaMemcpyAsync(mirror_->Of(input.data), input.data, static_cast<size_t>(BytesOf(input)),
                              cudaMemcpyDeviceToHost, copy));
  CUDA_CALL(cudaStreamSynchronize(copy));
}

void StagedExecutor::Deliver(const CommInstruction& instruction) {
  const cudaStream_t copy = streams_.staging.Get();
  for (const Tensor& output : instruction.outputs)
    CUDA_CALL(cudaMemcpyAsync(output.data, mirror_->Of(output.data), static_cast<size_t>(BytesOf(output)),
                              cudaMemcpyHostToDevice, copy));
  if (Clock() != nullptr) Clock()->Ends(instruction.index, copy);
  CUDA_CALL(cudaStreamSynchronize(copy));
}

}  // namespace espalier::cuda
