// A program on a GPU, as far as it is alike however messages travel: inputs and results in slots, steps begun and
// awaited, kernels.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "espalier/executor/executor.hpp"
#include "instruction_clock.hpp"
#include "lane_events.hpp"
#include "step_slots.hpp"

namespace espalier::cuda {

class CudaExecutor : public Executor {
 public:
  static constexpr int kSlots = 2;  ///< one for the step that runs, one for the next

  int StepsAhead() const override { return kSlots - 1; }
  void Begin() final;
  StepTimes End() final;
  void TimeNextStep() final;
  float GetScalar(std::string_view name, int microbatch = -1) const override;

 protected:
  CudaExecutor(const Program& program, const Coordinate& coordinate, Arena& arena, Streams& streams, Abort abort);

  /// Called before anything of a step is issued; its predecessor may be under way.
  virtual void BeforeStep() {}
  /// Issues all instructions, behind `began` and before anything else on the compute stream.
  virtual void IssueStep(cudaEvent_t began) = 0;
  /// Called while a step is awaited: shows how far the device is, throws what has gone wrong elsewhere.
  virtual void Look() {}

  void IssueKernel(const Call& call);
  /// Issued before and after what the compute lane waits for, so that the times of the step tell it apart.
  void MarkWait();
  /// Waits until the device has finished all that was begun. It is still to be ended.
  void AwaitBegun();
  int begun() const { return begun_; }
  /// The clock of the step that is being issued; null if it is not timed.
  const InstructionClock* Clock() const { return timed_ == begun_ ? &*clock_ : nullptr; }

  Streams& streams_;
  LaneEvents events_;

 private:
  /// Three, since the times of a step are read when its successor was begun, with those of its predecessor.
  static constexpr int kMarks = 3;
  struct Marks {
    Event began{Timing::kOn}, ended{Timing::kOn}, done{Timing::kOff};
    std::vector<Event> waits;  ///< pairs
    size_t used = 0;           ///< of them
    bool follows = false;      ///< begun while its predecessor was under way
  };
  Marks& MarksOf(int step) { return marks_[static_cast<size_t>(step % kMarks)]; }

  void Fill(const Operand& place, const void* data, int64_t bytes) final;
  void AwaitDone(Marks& marks);
  StepTimes TimesOf(int step);
  [[noreturn]] void FailHere(const std::string& what);

  StepSlots slots_;
  std::array<Marks, kMarks> marks_;
  DeviceMemory nan_;
  std::atomic<int> begun_ = 0;  ///< steps; ShowProgress() of other threads reads it
  int ended_ = 0;
  int timed_ = -1;  ///< the one that keeps a clock on every instruction
  std::optional<InstructionClock> clock_;
};

}  // namespace espalier::cuda
