// Inputs and results of steps in pinned memory: one slot per step in flight, so that the host fills the next while the
// device works.
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

  /// Sets an input of the next step, in `slot`. CHECKs that the value is an input.
  void Set(int slot, const Operand& place, const void* data, int64_t bytes);
  /// Copies the slot's inputs into the arena; CHECKs that all were set since the last call.
  void CopyInputs(int slot, cudaStream_t stream);
  /// Copies the results of the step into the slot.
  void CopyResults(int slot, cudaStream_t stream) const;

  /// True if the buffer at `offset` holds a result and some were kept.
  bool IsResult(int64_t offset) const;
  /// The step of `slot` has ended: Result() returns its results from now on, until the next call.
  void Keep(int slot);
  const std::byte* Result(int64_t offset) const;

 private:
  /// Bytes that are contiguous in the arena and in a slot.
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
  std::vector<std::byte> kept_;  ///< a copy of a slot; empty: none yet
};

}  // namespace espalier::cuda
