#include "espalier/executor/executor.hpp"

#include <algorithm>

#include "check_waits.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

int64_t EndOf(const Instruction& instruction) {
  int64_t end = instruction.workspace.offset + instruction.workspace.bytes;
  for (const OperandList& operands : {instruction.inputs, instruction.outputs})
    for (const Operand& operand : operands) end = std::max(end, operand.offset + operand.bytes);
  return end;
}

}  // namespace

Executor::Executor(const Program& program, const Coordinate& coordinate, const Memory& memory, KernelFinder find_kernel,
                   Abort abort)
    : program_(program), coordinate_(coordinate), arena_(memory.device), host_(memory.host), abort_(std::move(abort)) {
  CHECK(program.arena_bytes <= arena_.bytes(), "a program of {} bytes in an arena of {}", program.arena_bytes,
        arena_.bytes());
  CHECK(program.host_bytes == 0 || (host_ != nullptr && program.host_bytes <= host_->bytes()),
        "a program of {} bytes on the host in an arena of {}", program.host_bytes,
        host_ == nullptr ? 0 : host_->bytes());
  CheckWaits(program);
  for (const PersistentBuffer& buffer : program.persistent) {
    Resolve(buffer.place);
    NoteEnd(buffer.place);
  }
  ByLane<int> counts{};
  for (int i = 0; i < std::ssize(program.instructions); ++i) {
    const Instruction instruction = InstructionAt(i);
    const OpKind kind = OpOf(i).kind;
    CHECK(IsCommunication(kind) == IsMessageLane(instruction.lane) && IsHostCopy(kind) == IsCopyLane(instruction.lane),
          "{} runs on lane {}", Describe(i), Name(instruction.lane));
    if (instruction.lane == Lane::kCompute) {
      calls_.push_back(ResolveCall(i, find_kernel));
      continue;
    }
    if (IsCopyLane(instruction.lane))
      copies_.push_back(ResolveCopy(i));
    else
      exchanges_.push_back(ResolveComm(i));
    ++counts[instruction.lane];
    for (const OperandList& operands : {instruction.inputs, instruction.outputs})
      for (const Operand& operand : operands) NoteEnd(operand);
    NoteEnd(instruction.workspace);
  }
  for (Lane lane : kLanes)
    if (counts[lane] > 0) ends_.push_back({lane, counts[lane]});
}

Arena& Executor::ArenaOf(const Operand& operand) const {
  return program_.SpaceOf(operand) == Space::kHost ? *host_ : arena_;
}

void Executor::NoteEnd(const Operand& operand) {
  int64_t& end = persistent_end_[program_.SpaceOf(operand)];
  end = std::max(end, operand.offset + operand.bytes);
}

void Executor::UseMemory() {
  arena_.Use(persistent_end_[Space::kDevice]);
  if (host_ != nullptr) host_->Use(persistent_end_[Space::kHost]);
}

const Op& Executor::OpOf(int instruction) const { return program_.graph->op(InstructionAt(instruction).op); }

Tensor Executor::Resolve(const Operand& operand) const {
  const Value& value = program_.graph->value(operand.value);
  const Type& type = value.type;
  const Box box = HeldBox(value, program_.mesh, coordinate_);
  Tensor tensor{nullptr, type.dtype, ExtentsOf(box), {}};
  for (const Range& range : box) tensor.start.push_back(range.begin);
  const int64_t bytes = Volume(tensor.shape) * SizeOf(type.dtype);
  CHECK(bytes <= operand.bytes, "{} has {} bytes, {} are planned", value.name, bytes, operand.bytes);
  tensor.data = ArenaOf(operand).At(operand.offset, operand.bytes);
  return tensor;
}

std::vector<Tensor> Executor::Resolve(const OperandList& operands) const {
  std::vector<Tensor> tensors;
  for (const Operand& operand : operands) tensors.push_back(Resolve(operand));
  return tensors;
}

/// The part of an operand inside of `box`, which is contiguous.
Tensor Executor::ResolveBox(const Operand& operand, const Box& box) const {
  const Value& value = program_.graph->value(operand.value);
  const ByteRange range = BytesOf(value, box, program_.mesh, coordinate_);
  Tensor tensor{ArenaOf(operand).At(operand.offset + range.offset, range.bytes), value.type.dtype, ExtentsOf(box), {}};
  for (const Range& of_dim : box) tensor.start.push_back(of_dim.begin);
  return tensor;
}

/// One call, or for a strip one per block of rows. Operands without rows, such as weights, are whole in each.
std::vector<Executor::Operands> Executor::ResolveBlocks(const Instruction& i, const Op& op) const {
  if (!StripOf(op)) {
    std::vector<Operands> whole(1);
    whole[0].inputs = Resolve(i.inputs);
    whole[0].outputs = Resolve(i.outputs);
    return whole;
  }
  const OperandBoxes boxes = BoxesOf(*program_.graph, op, program_.mesh, coordinate_);
  const size_t count = boxes.outputs.at(0).size();
  std::vector<Operands> blocks(count);
  const auto add = [&](const OperandList& operands, const std::vector<std::vector<Box>>& boxes_of,
                       std::vector<Tensor> Operands::*to) {
    for (size_t k = 0; k < operands.size(); ++k)
      for (size_t b = 0; b < count; ++b) {
        CHECK(boxes_of[k].size() == count || boxes_of[k].size() == 1, "operand {} of {} has {} blocks of rows, not {}",
              k, op.kind, boxes_of[k].size(), count);
        (blocks[b].*to).push_back(ResolveBox(operands[k], boxes_of[k][boxes_of[k].size() == 1 ? 0 : b]));
      }
  };
  add(i.inputs, boxes.inputs, &Operands::inputs);
  add(i.outputs, boxes.outputs, &Operands::outputs);
  return blocks;
}

Executor::Call Executor::ResolveCall(int index, KernelFinder find_kernel) const {
  const Instruction i = InstructionAt(index);
  const Op& op = OpOf(index);
  const Kernel kernel = find_kernel(Name(op.kind));
  CHECK(kernel != nullptr, "no kernel for {}", Describe(index));
  std::byte* workspace = i.workspace.bytes > 0 ? arena_.At(i.workspace.offset, i.workspace.bytes) : nullptr;
  Call call{index, kernel, &op.attributes, ResolveBlocks(i, op), workspace, {}, EndOf(i)};
  std::copy_if(i.waits.begin(), i.waits.end(), std::back_inserter(call.waits),
               [](const Wait& wait) { return wait.lane != Lane::kCompute; });
  return call;
}

KernelCall Executor::ArgumentsOf(const Call& call, const Operands& block, void* stream) const {
  const Instruction i = InstructionAt(call.index);
  return {block.inputs, block.outputs, call.workspace, i.workspace.bytes,        call.attributes,
          i.accumulate, stream,        block.blocks,   block.input_stride_bytes, block.output_stride_bytes};
}

/// Whole shards; for a strip the rows that are transferred, if they are at most one block.
std::vector<Tensor> Executor::ResolveTransfers(const OperandList& operands,
                                               const std::vector<std::vector<Box>>& boxes) const {
  std::vector<Tensor> tensors;
  for (size_t k = 0; k < operands.size(); ++k) {
    tensors.push_back(boxes[k].size() == 1 ? ResolveBox(operands[k], boxes[k][0]) : Resolve(operands[k]));
    if (boxes[k].empty()) tensors.back().shape.at(0) = 0;
  }
  return tensors;
}

CommInstruction Executor::ResolveComm(int index) const {
  const Instruction i = InstructionAt(index);
  std::byte* workspace = i.workspace.bytes > 0 ? arena_.At(i.workspace.offset, i.workspace.bytes) : nullptr;
  if (!StripOf(OpOf(index))) return {i, Resolve(i.inputs), Resolve(i.outputs), workspace, Describe(index), index};
  const OperandBoxes boxes = BoxesOf(*program_.graph, OpOf(index), program_.mesh, coordinate_);
  return {i,
          ResolveTransfers(i.inputs, boxes.inputs),
          ResolveTransfers(i.outputs, boxes.outputs),
          workspace,
          Describe(index),
          index};
}

/// A part per tensor; those that follow one another on both sides are one.
HostCopy Executor::ResolveCopy(int index) const {
  const Instruction i = InstructionAt(index);
  const OperandBoxes boxes = BoxesOf(*program_.graph, OpOf(index), program_.mesh, coordinate_);
  HostCopy copy{i, index, {}};
  for (size_t k = 0; k < i.inputs.size(); ++k) {
    if (boxes.inputs[k].empty()) continue;  // a piece without elements
    const Tensor from = ResolveBox(i.inputs[k], boxes.inputs[k][0]), to = ResolveBox(i.outputs[k], boxes.outputs[k][0]);
    CHECK(from.shape == to.shape && from.dtype == to.dtype, "{} copies {} to {}", Describe(index), ToString(from.shape),
          ToString(to.shape));
    const HostCopy::Part part{to.As<std::byte>(), from.As<std::byte>(), Volume(to.shape) * SizeOf(to.dtype)};
    HostCopy::Part* last = copy.parts.empty() ? nullptr : &copy.parts.back();
    if (last != nullptr && last->to + last->bytes == part.to && last->from + last->bytes == part.from)
      last->bytes += part.bytes;
    else
      copy.parts.push_back(part);
  }
  return copy;
}

Tensor Executor::At(std::string_view name, int microbatch) const { return Resolve(program_.Find(name, microbatch)); }

std::vector<NamedTensor> Executor::All(ValueKind kind) const {
  std::vector<NamedTensor> all;
  for (const PersistentBuffer& buffer : program_.persistent) {
    const Value& value = program_.graph->value(buffer.value);
    if (value.kind == kind)
      all.push_back({value.name, buffer.microbatch, Resolve(buffer.place), &value.type, &ArenaOf(buffer.place)});
  }
  return all;
}

void Executor::SetInput(std::string_view name, int microbatch, const void* data, int64_t bytes) {
  const Tensor tensor = At(name, microbatch);
  const int64_t expected = Volume(tensor.shape) * SizeOf(tensor.dtype);
  CHECK(bytes == expected, "{} (microbatch {}) has {} bytes here, {} are given", name, microbatch, expected, bytes);
  Fill(program_.Find(name, microbatch), data, bytes);
}

void Executor::SetScalar(std::string_view name, float value, int microbatch) {
  const Tensor tensor = At(name, microbatch);
  CHECK(tensor.dtype == Dtype::kF32 && Volume(tensor.shape) == 1, "{} is no f32 scalar", name);
  SetInput(name, microbatch, &value, sizeof value);
}

float Executor::GetScalar(std::string_view name, int microbatch) const {
  const Tensor tensor = At(name, microbatch);
  CHECK(tensor.dtype == Dtype::kF32 && Volume(tensor.shape) == 1, "{} is no f32 scalar", name);
  float value = 0;
  arena_.Read(tensor.data, &value, sizeof value);
  return value;
}

std::vector<float> Executor::GetNumbers(std::string_view name) const {
  const Tensor tensor = At(name);
  CHECK(tensor.dtype == Dtype::kF32, "{} is not f32", name);
  std::vector<float> numbers(static_cast<size_t>(Volume(tensor.shape)));
  arena_.Read(tensor.data, numbers.data(), std::ssize(numbers) * static_cast<int64_t>(sizeof(float)));
  return numbers;
}

std::vector<double> Executor::instruction_ms() const {
  std::vector<double> lengths;
  for (const Span& span : spans_) lengths.push_back((span.end_us - span.ready_us) / 1e3);
  return lengths;
}

/// If communication failed first, it has already reported through its own abort handler; do not report twice.
void Executor::Fail(const std::string& message) {
  const bool first = !lanes_.Failed();
  std::exception_ptr thrown = std::make_exception_ptr(InvariantError(message));
  lanes_.Fail();
  try {
    if (first && abort_) abort_(message);
  } catch (...) {
    thrown = std::current_exception();
  }
  try {
    Abandon();
  } catch (...) {
    if (!first) thrown = std::current_exception();
  }
  std::rethrow_exception(thrown);
}

std::string Executor::Describe(int index) const {
  return index < 0 ? "outside the step" : espalier::Describe(program_, index);
}

}  // namespace espalier
