// What a step gets from the host and gives to it, in pinned memory: one slot for every step that may be under way, so
// that the host fills the next while the device works.
#pragma once

#include <memory>
#include <vector>

#include "espalier/executor/arena.hpp"
#include "espalier/program/instruction.hpp"
#include "handles.hpp"

namespace espalier::cuda {

class StepSlots {
 public:
  StepSlots(const Program& program, const Arena& arena, int slots);

  /// An input of the step that is begun next, in `slot`. CHECKs that it is one.
  void Set(int slot, const Operand& place, const void* data, int64_t bytes);
  /// Copies the slot's inputs into the arena; CHECKs that all were set since the last call.
  void CopyInputs(int slot, cudaStream_t stream);
  /// Copies the results of the step into the slot.
  void CopyResults(int slot, cudaStream_t stream) const;

  /// True if the buffer at `offset` holds a result and some were kept.
  bool IsResult(int64_t offset) const;
  /// The step of `slot` is over: its results are what Result() gives from now on, until the next are kept.
  void Keep(int slot);
  const std::byte* Result(int64_t offset) const;

 private:
  /// Bytes that lie side by side, in the arena and in a slot.
  struct Range {
    int64_t offset, bytes, at;
  };
  void Add(std::vector<Range>& ranges, const Operand& place);
  static const Range* Covering(const std::vector<Range>& ranges, int64_t offset);
  std::byte* Slot(int slot) const { return memory_->data() + slot * slot_bytes_; }

  const Arena& arena_;
  std::vector<Range> inputs_, results_;
  std::vector<int64_t> unset_, all_;  ///< offsets of inputs, sorted
  int64_t slot_bytes_ = 0;
  std::unique_ptr<PinnedMemory> memory_;
  std::vector<std::byte> kept_;  ///< a copy of a slot; empty: none was kept
};

}  // namespace espalier::cuda
