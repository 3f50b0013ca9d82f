#include "espalier/executor/cpu_executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm_clock.hpp"
#include "copy_lanes.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "spoil.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CpuExecutor::CpuExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                         Communication* communication, KernelFinder find_kernel, Abort abort)
    : Executor(program, coordinate, memory, find_kernel, std::move(abort)),
      communication_(communication),
      copy_lanes_(std::make_unique<CopyLanes>(copies_)),
      make_copy_([this](const HostCopy& copy) { Copy(copy); }),
      copy_spans_(copies_.size()),
      comm_clock_(std::make_unique<CommClock>()),
      ready_us_(program.instructions.size()) {
  CHECK(exchanges_.empty() || communication != nullptr,
        "the program communicates, but there is nothing to communicate with");
  AddClocks();
  if (!exchanges_.empty()) comm_ = communication->Prepare(program, coordinate, std::move(exchanges_));
}

CpuExecutor::~CpuExecutor() = default;

void CpuExecutor::AddClocks() {
  for (CommInstruction& exchange : exchanges_) {
    const auto index = static_cast<size_t>(exchange.index);
    exchange.before = [this, index] {
      ready_us_[index] = Now();
      if (timed_) spans_[index].ready_us = spans_[index].begin_us = ready_us_[index];
    };
    exchange.after = [this, index, lane = exchange.instruction.lane] {
      const double end_us = Now();
      comm_clock_->Transferred(lane, ready_us_[index], end_us);
      if (timed_) spans_[index].end_us = end_us;
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
  comm_clock_->Reset();
  began_ = Clock::now();
  if (timed_) timed_step_began_us_ = std::chrono::duration<double, std::micro>(began_.time_since_epoch()).count();
  lanes_.Reset();
  UseMemory();
  if (comm_ != nullptr) communication_->Start(*comm_, lanes_);
  copy_lanes_->Start(lanes_, make_copy_);
  try {
    RunCalls();
    AwaitLanes(ends_);
  } catch (const std::exception& error) {
    Fail(Describe(CurrentInstruction()) + ": " + error.what());
  }
  if (comm_ != nullptr) communication_->Finish();
  copy_lanes_->Finish();
  timed_ = false;
  current_.store(-1, std::memory_order_relaxed);
  Report();
}

void CpuExecutor::Copy(const HostCopy& copy) {
  const double begin_us = Now();
  if (FaultAtInstruction(copy.index) != InstructionFault::kSkip)
    for (const HostCopy::Part& part : copy.parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  const Span span{copy.index, begin_us, begin_us, Now()};
  copy_spans_[static_cast<size_t>(&copy - copies_.data())] = span;
  if (timed_) spans_[static_cast<size_t>(copy.index)] = span;
}

/// Waiting for peers counts as exposed: this rank cannot tell it from the transfer.
void CpuExecutor::Report() {
  times_.step_ms = MillisecondsSince(began_);
  for (const Span& copy : copy_spans_)
    comm_clock_->Transferred(program_.instructions[static_cast<size_t>(copy.instruction)].lane, copy.begin_us,
                             copy.end_us);
  times_.comm = comm_clock_->Times();
  times_.exposed_comm_ms = times_.comm->ExposedMs();
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
  double begin_us = Now();
  for (const Wait& wait : waits) {
    if (lanes_.Met(wait)) continue;
    lanes_.Await(wait);
    const double end_us = Now();
    comm_clock_->Waited(wait.lane, begin_us, end_us);
    begin_us = end_us;
  }
}

void CpuExecutor::Abandon() {
  copy_lanes_->Finish();
  if (comm_ != nullptr) communication_->Finish();
}

}  // namespace espalier
