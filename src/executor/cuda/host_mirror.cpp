#include "host_mirror.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier::cuda {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

HostMirror::HostMirror(const Arena& arena, const std::vector<CommInstruction>& instructions)
    : device_(arena.At(0, 0)), bytes_(arena.bytes()) {
  Reserve();
  std::vector<Range> ranges;
  const auto add = [&](int64_t offset, int64_t bytes) {
    if (bytes > 0) ranges.push_back({offset / kPage * kPage, (offset + bytes + kPage - 1) / kPage * kPage});
  };
  for (const CommInstruction& i : instructions) {
    for (const OperandList& operands : {i.instruction.inputs, i.instruction.outputs})
      for (const Operand& operand : operands) add(operand.offset, operand.bytes);
    add(i.instruction.workspace.offset, i.instruction.workspace.bytes);
  }
  Pin(std::move(ranges));
}

HostMirror::~HostMirror() {
  for (std::byte* range : pinned_) cudaHostUnregister(range);
  munmap(base_, static_cast<size_t>(bytes_ + kPage));
}

/// Reserves addresses only; pages are allocated when they are touched.
void HostMirror::Reserve() {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes_ + kPage), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw UserError(ExitStatus::kDoesNotFit,
                    fmt::format("the system has no {} addresses for messages of the GPU", bytes_));
  base_ = static_cast<std::byte*>(memory);
}

void HostMirror::Pin(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  for (size_t i = 0; i < ranges.size();) {
    Range whole = ranges[i];
    for (; i < ranges.size() && ranges[i].begin <= whole.end; ++i) whole.end = std::max(whole.end, ranges[i].end);
    std::byte* const at = base_ + whole.begin;
    if (cudaHostRegister(at, static_cast<size_t>(whole.end - whole.begin), cudaHostRegisterDefault) != cudaSuccess) {
      cudaGetLastError();
      throw UserError(
          ExitStatus::kDoesNotFit,
          fmt::format("the host gives no {} bytes of pinned memory for messages of the GPU", whole.end - whole.begin));
    }
    pinned_.push_back(at);
  }
}

void* HostMirror::Of(const void* device) const { return base_ + (static_cast<const std::byte*>(device) - device_); }

CommInstruction HostMirror::Of(const CommInstruction& instruction) const {
  CommInstruction here = instruction;
  for (std::vector<Tensor>* tensors : {&here.inputs, &here.outputs})
    for (Tensor& tensor : *tensors) tensor.data = Of(tensor.data);
  if (here.workspace != nullptr) here.workspace = static_cast<std::byte*>(Of(here.workspace));
  return here;
}

}  // namespace espalier::cuda
