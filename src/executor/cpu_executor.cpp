#include "espalier/executor/cpu_executor.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

/// Makes the first element that is there a NaN: a fault on purpose.
void Spoil(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.dtype == Dtype::kF32 && Volume(tensor.shape) > 0) {
      *tensor.As<float>() = std::numeric_limits<float>::quiet_NaN();
      return;
    }
}

}  // namespace

CpuExecutor::CpuExecutor(const Program& program, const Coordinate& coordinate, Arena& arena,
                         Communication* communication, KernelFinder find_kernel, Abort abort)
    : Executor(program, coordinate, arena, find_kernel, std::move(abort)), communication_(communication) {
  CHECK(exchanges_.empty() || communication != nullptr,
        "the program communicates, but there is nothing to communicate with");
  AddClocks();
  if (!exchanges_.empty()) comm_ = communication->Prepare(program, coordinate, std::move(exchanges_));
}

void CpuExecutor::AddClocks() {
  for (CommInstruction& exchange : exchanges_) {
    const auto index = static_cast<size_t>(exchange.index);
    exchange.before = [this, index] {
      if (timed_) spans_[index].ready_us = spans_[index].begin_us = Now();
    };
    exchange.after = [this, index] {
      if (timed_) spans_[index].end_us = Now();
    };
  }
}

void CpuExecutor::TimeNextStep() {
  spans_.clear();
  for (int i = 0; i < std::ssize(program_.instructions); ++i) spans_.push_back({i});
  timed_ = true;
}

double CpuExecutor::Now() const { return std::chrono::duration<double, std::micro>(Clock::now() - began_).count(); }

void CpuExecutor::Fill(const Operand& place, const void* data, int64_t bytes) {
  arena_.Write(arena_.At(place.offset, bytes), data, bytes);
}

void CpuExecutor::Begin() {
  times_ = {};
  began_ = Clock::now();
  if (timed_) timed_step_began_us_ = std::chrono::duration<double, std::micro>(began_.time_since_epoch()).count();
  lanes_.Reset();
  arena_.Use(persistent_end_);
  if (comm_ != nullptr) communication_->Start(*comm_, lanes_);
  try {
    RunCalls();
    AwaitLanes(ends_);
  } catch (const std::exception& error) {
    Fail(Describe(CurrentInstruction()) + ": " + error.what());
  }
  if (comm_ != nullptr) communication_->Finish();
  timed_ = false;
  current_.store(-1, std::memory_order_relaxed);
  times_.step_ms = MillisecondsSince(began_);
  times_.idle_ms = std::max(0.0, times_.step_ms - times_.compute_ms - times_.exposed_comm_ms);
}

void CpuExecutor::RunCalls() {
  for (const Call& call : calls_) {
    current_.store(call.index, std::memory_order_relaxed);
    AwaitLanes(call.waits);
    const Clock::time_point begin = Clock::now();
    const InstructionFault fault = FaultAtInstruction(call.index);
    for (const Operands& block : call.blocks) {
      if (fault != InstructionFault::kSkip) call.kernel(ArgumentsOf(call, block));
      if (fault == InstructionFault::kNan) Spoil(block.outputs);
    }
    times_.compute_ms += MillisecondsSince(begin);
    if (timed_) Record(call.index, begin);
    arena_.Use(call.end);
    lanes_.Raise(Lane::kCompute);
  }
}

void CpuExecutor::Record(int index, Clock::time_point begin) {
  const double begin_us = std::chrono::duration<double, std::micro>(begin - began_).count();
  spans_[static_cast<size_t>(index)] = {index, begin_us, begin_us, Now()};
}

void CpuExecutor::AwaitLanes(std::span<const Wait> waits) {
  if (lanes_.Met(waits)) return;
  const Clock::time_point begin = Clock::now();
  for (const Wait& wait : waits) lanes_.Await(wait);
  times_.exposed_comm_ms += MillisecondsSince(begin);
}

void CpuExecutor::Abandon() {
  if (comm_ != nullptr) communication_->Finish();
}

}  // namespace espalier
