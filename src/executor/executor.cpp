#include "espalier/executor/executor.hpp"

#include <algorithm>
#include <chrono>

#include "check_waits.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

int64_t EndOf(const Instruction& instruction) {
  int64_t end = instruction.workspace.offset + instruction.workspace.bytes;
  for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs})
    for (const Operand& operand : *operands) end = std::max(end, operand.offset + operand.bytes);
  return end;
}

/// Makes the first element that is there a NaN: a fault on purpose.
void Spoil(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.dtype == Dtype::kF32 && Volume(tensor.shape) > 0) {
      *tensor.As<float>() = std::numeric_limits<float>::quiet_NaN();
      return;
    }
}

}  // namespace

Executor::Executor(const Program& program, const Coordinate& coordinate, Arena& arena, Communication* communication,
                   KernelFinder find_kernel, Abort abort)
    : program_(program),
      coordinate_(coordinate),
      arena_(arena),
      communication_(communication),
      abort_(std::move(abort)) {
  CHECK(program.arena_bytes <= arena.bytes(), "a program of {} bytes in an arena of {}", program.arena_bytes,
        arena.bytes());
  CheckWaits(program);
  for (const PersistentBuffer& buffer : program.persistent) {
    Resolve(buffer.place);
    persistent_end_ = std::max(persistent_end_, buffer.place.offset + buffer.place.bytes);
  }
  std::vector<CommInstruction> comm;
  std::array<int, kLaneCount> counts{};
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const Instruction& instruction = program.instructions[static_cast<size_t>(i)];
    const bool communicates = IsCommunication(OpOf(i).kind);
    CHECK(communicates == (instruction.lane != Lane::kCompute), "{} runs on lane {}", Describe(i),
          Name(instruction.lane));
    if (!communicates) {
      calls_.push_back(ResolveCall(i, find_kernel));
      continue;
    }
    comm.push_back(ResolveComm(i));
    ++counts[static_cast<size_t>(instruction.lane)];
    persistent_end_ = std::max(persistent_end_, EndOf(instruction));
  }
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    if (counts[lane] > 0) ends_.push_back({static_cast<Lane>(lane), counts[lane]});
  CHECK(comm.empty() || communication != nullptr, "the program communicates, but there is nothing to communicate with");
  if (!comm.empty()) comm_ = communication->Prepare(program, coordinate, std::move(comm));
}

const Op& Executor::OpOf(int instruction) const {
  return program_.graph->ops[static_cast<size_t>(program_.instructions[static_cast<size_t>(instruction)].op)];
}

Tensor Executor::Resolve(const Operand& operand) const {
  const Type& type = program_.graph->values[static_cast<size_t>(operand.value)].type;
  const Box box = LocalBox(type, program_.mesh, coordinate_);
  Tensor tensor{nullptr, type.dtype, ExtentsOf(box), {}};
  for (const Range& range : box) tensor.start.push_back(range.begin);
  const int64_t bytes = Volume(tensor.shape) * SizeOf(type.dtype);
  CHECK(bytes <= operand.bytes, "{} has {} bytes, {} are planned",
        program_.graph->values[static_cast<size_t>(operand.value)].name, bytes, operand.bytes);
  tensor.data = arena_.At(operand.offset, operand.bytes);
  return tensor;
}

std::vector<Tensor> Executor::Resolve(const std::vector<Operand>& operands) const {
  std::vector<Tensor> tensors;
  for (const Operand& operand : operands) tensors.push_back(Resolve(operand));
  return tensors;
}

Executor::Call Executor::ResolveCall(int index, KernelFinder find_kernel) const {
  const Instruction& i = program_.instructions[static_cast<size_t>(index)];
  const Op& op = OpOf(index);
  const Kernel kernel = find_kernel(op.kind);
  CHECK(kernel != nullptr, "no kernel for {}", Describe(index));
  std::byte* workspace = i.workspace.bytes > 0 ? arena_.At(i.workspace.offset, i.workspace.bytes) : nullptr;
  Call call{index, kernel, &op.attributes, Resolve(i.inputs), Resolve(i.outputs), workspace, {}, EndOf(i)};
  std::copy_if(i.waits.begin(), i.waits.end(), std::back_inserter(call.waits),
               [](const Wait& wait) { return wait.lane != Lane::kCompute; });
  return call;
}

CommInstruction Executor::ResolveComm(int index) const {
  const Instruction& i = program_.instructions[static_cast<size_t>(index)];
  std::byte* workspace = i.workspace.bytes > 0 ? arena_.At(i.workspace.offset, i.workspace.bytes) : nullptr;
  return {&i, Resolve(i.inputs), Resolve(i.outputs), workspace, Describe(index), index};
}

StepTimes Executor::RunStep() {
  StepTimes times;
  const Clock::time_point begin = Clock::now();
  lanes_.Reset();
  arena_.Use(persistent_end_);
  if (comm_ != nullptr) communication_->Start(*comm_, lanes_);
  try {
    RunCalls(times);
    AwaitLanes(ends_, times);
  } catch (const std::exception& error) {
    Fail(error.what());
  }
  if (comm_ != nullptr) communication_->Finish();
  current_.store(-1, std::memory_order_relaxed);
  times.step_ms = Milliseconds(Clock::now() - begin);
  times.idle_ms = std::max(0.0, times.step_ms - times.compute_ms - times.exposed_comm_ms);
  return times;
}

void Executor::RunCalls(StepTimes& times) {
  for (const Call& call : calls_) {
    current_.store(call.index, std::memory_order_relaxed);
    AwaitLanes(call.waits, times);
    const Clock::time_point begin = Clock::now();
    const Instruction& i = program_.instructions[static_cast<size_t>(call.index)];
    const InstructionFault fault = FaultAtInstruction(call.index);
    if (fault != InstructionFault::kSkip) call.kernel({call.inputs, call.outputs, call.workspace, i.workspace.bytes, call.attributes, i.accumulate});
    if (fault == InstructionFault::kNan) Spoil(call.outputs);
    times.compute_ms += Milliseconds(Clock::now() - begin);
    arena_.Use(call.end);
    lanes_.Raise(Lane::kCompute);
  }
}

void Executor::AwaitLanes(std::span<const Wait> waits, StepTimes& times) {
  if (lanes_.Met(waits)) return;
  const Clock::time_point begin = Clock::now();
  for (const Wait& wait : waits) lanes_.Await(wait);
  times.exposed_comm_ms += Milliseconds(Clock::now() - begin);
}

/// Communication that failed has told its own `abort`; this lane only fell over it then.
void Executor::Fail(const std::string& what) {
  const bool ours = !lanes_.Failed();
  const std::string message = Describe(CurrentInstruction()) + ": " + what;
  std::exception_ptr thrown = std::make_exception_ptr(InvariantError(message));
  lanes_.Fail();
  try {
    if (ours && abort_) abort_(message);
  } catch (...) {
    thrown = std::current_exception();
  }
  try {
    if (comm_ != nullptr) communication_->Finish();
  } catch (...) {
    if (!ours) thrown = std::current_exception();
  }
  std::rethrow_exception(thrown);
}

Tensor Executor::At(std::string_view name, int microbatch) const { return Resolve(program_.Find(name, microbatch)); }

std::vector<NamedTensor> Executor::All(ValueKind kind) const {
  std::vector<NamedTensor> all;
  for (const PersistentBuffer& buffer : program_.persistent) {
    const Value& value = program_.graph->values[static_cast<size_t>(buffer.value)];
    if (value.kind == kind) all.push_back({value.name, buffer.microbatch, Resolve(buffer.place), &value.type});
  }
  return all;
}

float Executor::GetScalar(std::string_view name, int microbatch) const {
  const Tensor tensor = At(name, microbatch);
  CHECK(tensor.dtype == Dtype::kF32 && Volume(tensor.shape) == 1, "{} is no f32 scalar", name);
  return *tensor.As<float>();
}

void Executor::SetScalar(std::string_view name, float value, int microbatch) {
  const Tensor tensor = At(name, microbatch);
  CHECK(tensor.dtype == Dtype::kF32 && Volume(tensor.shape) == 1, "{} is no f32 scalar", name);
  *tensor.As<float>() = value;
}

std::string Executor::Describe(int index) const {
  return index < 0 ? "outside the step" : espalier::Describe(program_, index);
}

}  // namespace espalier
