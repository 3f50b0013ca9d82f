// Runs a program on a GPU; this class does not depend on the transport of messages. Inputs and results in slots, begin
// and end of steps, kernels.
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
  std::vector<float> GetNumbers(std::string_view name) const override;

 protected:
  CudaExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory, Streams& streams,
               Abort abort);

  /// Called before a step is issued; the previous step may be in flight.
  virtual void BeforeStep() {}
  /// Issues all instructions, after `began` and before anything else on the compute stream.
  virtual void IssueStep(cudaEvent_t began) = 0;
  /// Called while a step is awaited: updates the progress, throws errors of other threads.
  virtual void Look() {}

  void IssueKernel(const Call& call);
  /// On the stream of its lane.
  void IssueCopy(const HostCopy& copy);
  void Spoil(const std::vector<Tensor>& outputs);
  static void Batch(Call& call);
  /// Issued before and after a wait of the compute lane, so that the step times show it.
  void MarkWait();
  /// Waits until the device has finished all steps that have begun. End() must still be called for them.
  void AwaitBegun();
  int begun() const { return begun_; }
  /// The clock of the current step; null if it is not timed.
  const InstructionClock* Clock() const { return timed_ == begun_ ? &*clock_ : nullptr; }

  Streams& streams_;
  LaneEvents events_;

 private:
  /// Three: the times of a step are read after the next step has begun, together with the times of the previous one.
  static constexpr int kMarks = 3;
  struct Marks {
    Event began{Timing::kOn}, ended{Timing::kOn}, done{Timing::kOff};
    std::vector<Event> waits;  ///< pairs: before and after a wait
    size_t used = 0;           ///< number of events in use
    bool follows = false;      ///< begun while the previous step was in flight
  };
  Marks& MarksOf(int step) { return marks_[step % kMarks]; }

  void Fill(const Operand& place, const void* data, int64_t bytes) final;
  void AwaitDone(Marks& marks);
  StepTimes TimesOf(int step);
  [[noreturn]] void FailHere(const std::string& what);

  StepSlots slots_;
  std::array<Marks, kMarks> marks_;
  DeviceMemory nan_;
  std::atomic<int> begun_ = 0;  ///< number of steps; other threads read it in ShowProgress()
  int ended_ = 0;
  int timed_ = -1;  ///< the step that measures every instruction
  std::optional<InstructionClock> clock_;
};

}  // namespace espalier::cuda
