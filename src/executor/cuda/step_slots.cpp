#include "step_slots.hpp"

#include <algorithm>
#include <cstring>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier::cuda {

StepSlots::StepSlots(const Program& program, const Arena& arena, int slots) : arena_(arena) {
  const std::vector<int>& results = program.graph->results;
  for (const PersistentBuffer& buffer : program.persistent) {
    if (buffer.place.bytes == 0) continue;
    if (program.graph->value(buffer.value).kind == ValueKind::kInput) {
      Add(inputs_, buffer.place);
      all_.push_back(buffer.place.offset);
    }
    if (std::ranges::count(results, buffer.value) > 0) Add(results_, buffer.place);
  }
  std::ranges::sort(all_);
  unset_ = all_;
  memory_ = std::make_unique<PinnedMemory>(static_cast<size_t>(slots * slot_bytes_));
}

/// Merges adjacent buffers, so that few copies carry them all.
void StepSlots::Add(std::vector<Range>& ranges, const Operand& place) {
  if (!ranges.empty() && Aligned(ranges.back().offset + ranges.back().bytes) == place.offset &&
      Aligned(ranges.back().at + ranges.back().bytes) == slot_bytes_)
    ranges.back().bytes = place.offset + place.bytes - ranges.back().offset;
  else
    ranges.push_back({place.offset, place.bytes, slot_bytes_});
  slot_bytes_ = Aligned(ranges.back().at + ranges.back().bytes);
}

const StepSlots::Range* StepSlots::Covering(const std::vector<Range>& ranges, int64_t offset) {
  for (const Range& range : ranges)
    if (range.offset <= offset && offset < range.offset + range.bytes) return &range;
  return nullptr;
}

void StepSlots::Set(int slot, const Operand& place, const void* data, int64_t bytes) {
  if (bytes == 0) return;
  CHECK(std::ranges::binary_search(all_, place.offset), "value {} is no input of the program", place.value);
  const Range& range = *Covering(inputs_, place.offset);
  std::memcpy(Slot(slot) + range.at + (place.offset - range.offset), data, static_cast<size_t>(bytes));
  std::erase(unset_, place.offset);
}

void StepSlots::CopyInputs(int slot, cudaStream_t stream) {
  CHECK(unset_.empty(), "{} of {} inputs were not set for this step", unset_.size(), all_.size());
  unset_ = all_;
  for (const Range& range : inputs_)
    CUDA_CALL(cudaMemcpyAsync(arena_.At(range.offset, range.bytes), Slot(slot) + range.at,
                              static_cast<size_t>(range.bytes), cudaMemcpyHostToDevice, stream));
}

void StepSlots::CopyResults(int slot, cudaStream_t stream) const {
  for (const Range& range : results_)
    CUDA_CALL(cudaMemcpyAsync(Slot(slot) + range.at, arena_.At(range.offset, range.bytes),
                              static_cast<size_t>(range.bytes), cudaMemcpyDeviceToHost, stream));
}

bool StepSlots::IsResult(int64_t offset) const { return !kept_.empty() && Covering(results_, offset) != nullptr; }

void StepSlots::Keep(int slot) { kept_.assign(Slot(slot), Slot(slot) + slot_bytes_); }

const std::byte* StepSlots::Result(int64_t offset) const {
  const Range& range = *Covering(results_, offset);
  return kept_.data() + range.at + (offset - range.offset);
}

}  // namespace espalier::cuda
