#include "cuda_executor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "espalier/kernels/cuda/cuda_kernels.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "ranges.hpp"

namespace espalier::cuda {
namespace {

double MillisecondsBetween(const Event& from, const Event& to) {
  float ms = 0;
  CUDA_CALL(cudaEventElapsedTime(&ms, from.Get(), to.Get()));
  return ms;
}

void Record(const Event& event, cudaStream_t stream) { CUDA_CALL(cudaEventRecord(event.Get(), stream)); }

}  // namespace

CudaExecutor::CudaExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory, Streams& streams,
                           Abort abort)
    : Executor(program, coordinate, memory, FindCudaKernel, std::move(abort)),
      streams_(streams),
      events_(program),
      slots_(program, memory.device, kSlots),
      nan_(sizeof(float)) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CopyToDevice(nan_.data(), &nan, sizeof nan);
  for (Call& call : calls_)
    if (TakesBlocks(OpOf(call.index))) Batch(call);
  for (const Call& call : calls_)
    for (const Operands& block : call.blocks) PrepareCudaKernel(Name(OpOf(call.index).kind), ArgumentsOf(call, block));
}

/// One batched GEMM for blocks of rows that have equal sizes and equal distances.
void CudaExecutor::Batch(Call& call) {
  const auto distance = [](const Tensor& from, const Tensor& to) {
    return static_cast<const std::byte*>(to.data) - static_cast<const std::byte*>(from.data);
  };
  const auto count = std::ssize(call.blocks);
  if (count < 2 || Volume(call.blocks[0].inputs[0].shape) == 0) return;
  Operands& first = call.blocks[0];
  const int64_t input = distance(first.inputs[0], call.blocks[1].inputs[0]);
  const int64_t output = distance(first.outputs[0], call.blocks[1].outputs[0]);
  for (int64_t b = 1; b < count; ++b) {
    const Operands& block = call.blocks[static_cast<size_t>(b)];
    if (block.inputs[0].shape != first.inputs[0].shape || distance(first.inputs[0], block.inputs[0]) != b * input ||
        distance(first.outputs[0], block.outputs[0]) != b * output)
      return;
  }
  first.blocks = count;
  first.input_stride_bytes = input;
  first.output_stride_bytes = output;
  call.blocks.resize(1);
}

void CudaExecutor::Fill(const Operand& place, const void* data, int64_t bytes) {
  CHECK(begun_ - ended_ < kSlots, "inputs of a step while {} are in flight", begun_ - ended_);
  slots_.Set(begun_ % kSlots, place, data, bytes);
}

void CudaExecutor::TimeNextStep() {
  if (timed_ == begun_) return;  // asked before
  CHECK(timed_ < ended_, "a timed step is in flight");
  clock_.emplace(program_.instructions.size());
  timed_ = begun_;
}

void CudaExecutor::Begin() {
  CHECK(begun_ - ended_ < kSlots, "{} steps are in flight", begun_ - ended_);
  const Range range(fmt::format("issue run {} of a program", begun_ + 1).c_str());
  Marks& marks = MarksOf(begun_);
  marks.used = 0;
  marks.follows = begun_ > ended_;
  UseMemory();
  const cudaStream_t compute = streams_.Compute();
  try {
    BeforeStep();
    slots_.CopyInputs(begun_ % kSlots, compute);
    Record(marks.began, compute);
    if (timed_ == begun_) timed_step_began_us_ = SteadyMicroseconds();
    IssueStep(marks.began.Get());
    Record(marks.ended, compute);
    slots_.CopyResults(begun_ % kSlots, compute);
    Record(marks.done, compute);
  } catch (const std::exception& error) {
    FailHere(error.what());
  }
  current_.store(-1, std::memory_order_relaxed);
  ++begun_;
}

StepTimes CudaExecutor::End() {
  CHECK(ended_ < begun_, "no step is in flight");
  const Range range("await");
  StepTimes times;
  try {
    AwaitDone(MarksOf(ended_));
    times = TimesOf(ended_);
    if (timed_ == ended_) spans_ = clock_->Read(MarksOf(ended_).began);
  } catch (const std::exception& error) {
    FailHere(error.what());
  }
  slots_.Keep(ended_ % kSlots);
  ++ended_;
  return times;
}

/// Polls, so that an error in another thread ends the wait. A look asks every communicator for its state.
void CudaExecutor::AwaitDone(Marks& marks) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kNap = std::chrono::microseconds(20);
  constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
  for (auto look_at = Clock::now();;) {
    const cudaError_t state = cudaEventQuery(marks.done.Get());
    if (const auto now = Clock::now(); state == cudaSuccess || now >= look_at) {
      Look();
      look_at = now + kBetweenLooks;
    }
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) FailCuda(__FILE__, __LINE__, "a step in flight", state);
    cudaGetLastError();  // otherwise the next launch would report "not ready" as its error
    std::this_thread::sleep_for(kNap);
  }
}

void CudaExecutor::AwaitBegun() {
  if (ended_ < begun_) AwaitDone(MarksOf(begun_ - 1));
}

StepTimes CudaExecutor::TimesOf(int step) {
  const Marks& marks = MarksOf(step);
  StepTimes times;
  for (size_t i = 0; i + 1 < marks.used; i += 2)
    times.exposed_comm_ms += MillisecondsBetween(marks.waits[i], marks.waits[i + 1]);
  const double issued_ms = MillisecondsBetween(marks.began, marks.ended);
  times.compute_ms = issued_ms - times.exposed_comm_ms;
  if (marks.follows) times.idle_ms = MillisecondsBetween(MarksOf(step + kMarks - 1).ended, marks.began);
  times.step_ms = issued_ms + times.idle_ms;
  return times;
}

void CudaExecutor::IssueKernel(const Call& call) {
  current_.store(call.index, std::memory_order_relaxed);
  const InstructionFault fault = FaultAtInstruction(call.index);
  if (Clock() != nullptr) Clock()->Begins(call.index, streams_.Compute());
  for (const Operands& block : call.blocks) {
    if (fault != InstructionFault::kSkip) call.kernel(ArgumentsOf(call, block, streams_.Compute()));
    if (fault == InstructionFault::kNan) Spoil(block.outputs);
  }
  if (Clock() != nullptr) Clock()->Ends(call.index, streams_.Compute());
  arena_.Use(call.end);
}

void CudaExecutor::IssueCopy(const HostCopy& copy) {
  const Lane lane = copy.instruction.lane;
  const cudaStream_t stream = streams_.Of(lane);
  const cudaMemcpyKind kind = lane == Lane::kCopyOut ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  if (Clock() != nullptr) Clock()->Begins(copy.index, stream);
  if (FaultAtInstruction(copy.index) != InstructionFault::kSkip)
    for (const HostCopy::Part& part : copy.parts)
      if (part.bytes > 0) CUDA_CALL(cudaMemcpyAsync(part.to, part.from, static_cast<size_t>(part.bytes), kind, stream));
  if (Clock() != nullptr) Clock()->Ends(copy.index, stream);
}

/// Sets the first existing element to NaN: an injected fault.
void CudaExecutor::Spoil(const std::vector<Tensor>& outputs) {
  const auto x =
      std::ranges::find_if(outputs, [](const Tensor& t) { return t.dtype == Dtype::kF32 && Volume(t.shape) > 0; });
  if (x != outputs.end())
    CUDA_CALL(cudaMemcpyAsync(x->data, nan_.data(), sizeof(float), cudaMemcpyDeviceToDevice, streams_.Compute()));
}

void CudaExecutor::MarkWait() {
  Marks& marks = MarksOf(begun_);
  if (marks.used == marks.waits.size()) marks.waits.emplace_back(Timing::kOn);
  Record(marks.waits[marks.used++], streams_.Compute());
}

float CudaExecutor::GetScalar(std::string_view name, int microbatch) const {
  const Operand& place = program_.Find(name, microbatch);
  if (!slots_.IsResult(place.offset)) return Executor::GetScalar(name, microbatch);
  float value = 0;
  std::memcpy(&value, slots_.Result(place.offset), sizeof value);
  return value;
}

std::vector<float> CudaExecutor::GetNumbers(std::string_view name) const {
  const Operand& place = program_.Find(name, -1);
  if (!slots_.IsResult(place.offset)) return Executor::GetNumbers(name);
  std::vector<float> numbers(static_cast<size_t>(place.bytes) / sizeof(float));
  std::memcpy(numbers.data(), slots_.Result(place.offset), static_cast<size_t>(place.bytes));
  return numbers;
}

void CudaExecutor::FailHere(const std::string& what) {
  const int at = CurrentInstruction();
  Fail((at < 0 ? std::string("a step on the GPU") : Describe(at)) + ": " + what);
}

}  // namespace espalier::cuda
