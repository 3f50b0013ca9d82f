// The steps of a run: compute, judge, report, save, validate, until all are done or the run stops.
//
// If the device can run steps ahead, the next step begins before the loss of the last one is read. A step in flight has
// begun and is not yet awaited. Saving, validating and stopping need the state after exactly one step, so they wait
// until no step is in flight. After each awaited step all ranks agree on their flags (StepFlags), and the flags decide
// the phase of the loop:
//
//      no flag asks for a pause                  a save, a stop, or an unreadable batch; steps in flight
//            +------+                     +----------------------------------------+
//            |      v                     |                                        v
//            |  +---------+  -------------+                                  +----------+ ---+  steps in flight:
//            +- | running |                                                  | draining |    |  await the next one
//               +---------+  <---------------------------------------------- +----------+ <--+
//                 |     |       no step in flight: save, then begin steps again    |
//                 |     |                                                          |
//                 |     |     a stop or an unreadable batch; no step in flight     |
//                 |     +------------------------+   +-----------------------------+
//                 |                              v   v
//                 |                           +---------+
//                 v                           | stopped |  the state after the last awaited step is saved
//            all steps are done               +---------+
//
// draining begins no step. A step that the guard gives up leads back to the last checkpoint (rollback) without a change
// of phase, or ends the run.
#pragma once

#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/data/batch_loader.hpp"
#include "espalier/util/agreed_error.hpp"
#include "train/guard.hpp"
#include "train/run.hpp"
#include "train/stopping/step_flags.hpp"
#include "train/stragglers.hpp"

namespace espalier {

/// How the steps of a run ended.
struct Outcome {
  int64_t first_step = 0;            ///< the step that this start continued from
  int64_t last_step = 0;             ///< the last awaited step
  bool stopped = false;              ///< before run.steps
  std::optional<AgreedError> error;  ///< error that ended the run
  bool state_unusable = false;       ///< the state after the last step is unusable, and was not saved
  double late_share = 0;             ///< share of the time of all steps (StepTimes::late_ms)
};

/// Owns everything that changes from step to step. All public members are collective.
class StepLoop {
 public:
  /// The state is the one after `first_step`. Begins to read batches. `run` must outlive this.
  StepLoop(const Run& run, int64_t first_step);

  /// Runs steps until run.steps, a stop, or an error. A run that stops before its first step saves its initial state,
  /// unless a checkpoint has it.
  Outcome Train();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();
  enum class Phase : uint8_t { kRunning, kDraining, kStopped };  ///< see the drawing above
  enum class Samples : uint8_t { kPassOver, kRepeat };           ///< the samples of the steps that a rollback gives up

  /// A step that has begun and is not yet awaited.
  struct StepInFlight {
    int64_t step;
    double lr, data_ms;
    Clock::time_point began;
  };

  const Deck& deck() const { return run_.deck(); }
  const BatchRamp& ramp() const { return run_.programs.ramp(); }
  Executor& ExecutorOf(int64_t step) const { return run_.programs.TrainingOf(step).executor(); }

  // The state of the loop.
  bool AllStepsDone() const { return step_ >= deck().run.steps; }
  bool Stopped() const { return phase_ == Phase::kStopped; }
  /// The state is the one after `step_`.
  bool NoStepInFlight() const { return in_flight_.empty(); }
  int64_t NextStep() const { return (NoStepInFlight() ? step_ : in_flight_.back().step) + 1; }

  // Steps.
  bool MayBegin();
  double GrowthAfter(int64_t step) const;
  void ReportSize(int64_t step);
  void BeginStep();
  StepRecord AwaitStep();
  void ReportSlow(const SlowParts& slow) const;
  void DiscardStepsInFlight();
  StepRecord RecordOf(const StepInFlight& step, const StepTimes& times) const;

  // Batches.
  std::unique_ptr<BatchLoader> NewLoader() const;
  bool NextBatchIsUnread();
  bool AllHaveNextBatch();
  void RequireBatch();

  // Between steps.
  StepFlags AgreeOnFlags();
  template <typename Work>
  void StopOnError(Work work);
  bool SaveOrCompare(const StepFlags& flags);
  bool Save(SaveTo to);
  bool Compare();
  bool CompareComputation();
  bool ComparesAfter(int64_t step) const;
  bool ComparesComputationAfter(int64_t step) const;
  void SaveUnlessThere();
  History HistoryOfSteps() const { return {losses_, guard_.window()}; }
  bool ValidatesAfter(int64_t step) const;
  void Validate();

  // Handling of steps that are not finite or spikes, and of states whose copies differ.
  bool PassesGuard(const StepRecord& record);
  bool RollBack(const std::string& reason, Samples samples, int64_t sound_to = kAnyStep);
  std::string WhatIsWrong(const StepRecord& record) const;
  void GiveUp(const std::string& reason, const std::string& remedy);
  std::string WhatToTry() const;
  void AnswerCorruption(const Corruption& corruption, std::string_view what, int64_t sound_to = kAnyStep);

  const Run& run_;

  // Progress.
  const int64_t first_step_;  ///< the step that this start continues from
  int64_t step_;              ///< the last awaited step
  std::deque<StepInFlight> in_flight_;
  int64_t sequences_ = 0;  ///< sequences of the last step that was begun; 0: none was
  Phase phase_ = Phase::kRunning;
  std::optional<AgreedError> error_;  ///< ends the run once its state is saved
  bool state_unusable_ = false;       ///< the last step made the state unusable: it is not saved

  // Batches.
  std::unique_ptr<BatchLoader> loader_;  ///< null on a device that only waits
  int64_t read_to_ = 0;                  ///< every rank has read the batches of the steps up to this one

  // Judgement of steps.
  Guard guard_;
  int64_t computed_alike_;      ///< the last step after which all ranks computed the same, or the first of this start
  int64_t proven_ = -1;         ///< the last step whose weights made a finite step
  bool skipped_ = false;        ///< the guard skipped the update of the last step
  std::vector<double> losses_;  ///< losses of the last accepted steps, for the checkpoint

  // Checkpoints.
  bool save_due_ = false;    ///< by checkpoint.every_steps; a skipped step defers the save
  bool copy_due_ = false;    ///< by checkpoint.memory_steps; a save in flight defers it, too
  double save_wait_ms_ = 0;  ///< time that training waited for saves and comparisons since the last step was reported

  // Times.
  Stragglers stragglers_;
  Clock::time_point last_end_;  ///< end of the previous step
  double last_step_ms_ = 0;
  double stepped_ms_ = 0, late_ms_ = 0;  ///< sums over all steps of this start
  double slowest_validation_ms_ = 0;
};

}  // namespace espalier
