// Saving and loading within a run: when to save, the proof of the weights, and the reports.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/checkpoint/copies.hpp"
#include "espalier/deck/compare.hpp"
#include "espalier/report/report.hpp"
#include "train/programs.hpp"
#include "train/startup/find_start.hpp"
#include "train/state/checkpoint_now.hpp"

namespace espalier {

/// When a save happens. The next steps may show that its weights are unusable (finite, but with gradients that are
/// not), so between steps the previous checkpoint is kept too, whatever the value of checkpoint.keep.
enum class Moment : uint8_t {
  kBetweenSteps,
  kAtTheEnd,
  kAfterSkip,  ///< at the end, after the guard skipped the last step: no older checkpoint is removed
};

/// History of the steps before a checkpoint.
struct History {
  std::vector<double> losses;    ///< losses of the last finite steps, for people and checks
  std::vector<StepSeen> window;  ///< steps with which the guard compares the next one
};

/// The begin of a save.
struct SaveStart {
  double blocked_ms = 0;                 ///< time that training waited
  std::optional<Corruption> corruption;  ///< copies of the state differ: nothing is saved
};

/// A device that only waits has no state: nothing is saved or loaded, and no save is ever due.
class Checkpointing {
 public:
  /// Allocates the staging buffer. Checkpoints contain `requested_deck`, the deck before its device was chosen, so that
  /// a continued run chooses again. Checkpoints also contain the tokenizer of `data`. The other arguments must outlive
  /// this; `memory` is null without copies in memory. Collective.
  Checkpointing(const Deck& deck, LoadedDeck requested_deck, const RunData& data, const Programs& programs,
                World& world, MpiWorld* mpi, const MemoryNodes* memory, Reporter& reporter);

  /// Loads start.generation from memory, or the first of start.checkpoints that is intact, stepping back as far as
  /// checkpoint.fallback allows, and passes its proof. Removes the copies in memory that it does not continue, and
  /// warns of such checkpoints in the directory. Returns the step; 0 if there is nothing to load. `start` must outlive
  /// this. Collective.
  int64_t Restore(Start& start);
  /// The checkpoint, or the copy in memory, that was loaded last; empty: none.
  const std::string& loaded() const { return loaded_; }
  /// The checkpoint that this run saved or loaded last and its predecessors, newest first. The checkpoints of another
  /// directory, where this start began, come last. For rank 0.
  std::vector<std::string> Line() const;
  /// Step of the first of them; 0 if there is none.
  int64_t newest_step() const { return newest_step_; }
  /// Differences between the deck and the deck of the checkpoint loaded last; "data" if the training data differ.
  const std::vector<DeckDifference>& differences() const { return differences_; }
  /// Waits for the save in flight, then restores the checkpoint that this run saved or loaded last. Returns its step;
  /// -1 if there is none. With `steps_are_sound` a newer copy in memory is taken instead; otherwise its weights may be
  /// what ruined the steps since, and it is removed. States after step `sound_to` do not count. Collective.
  int64_t RollBack(bool steps_are_sound, int64_t sound_to);
  /// Removes all copies in memory: the run does not continue from them. Collective.
  void DropMemory();
  /// Removes them and their directory: the run is done. Collective.
  void EndMemory();

  /// The accepted steps before the checkpoint that was loaded last, for the guard.
  const std::vector<StepSeen>& window() const { return window_; }

  /// Samples skipped by rollbacks, without those of completed steps.
  int64_t passed_over() const { return passed_over_; }
  void PassOver(int64_t samples) { passed_over_ = samples; }

  /// True if checkpoint.every_steps asks for a save after `step`.
  bool Due(int64_t step) const;
  /// The same of checkpoint.memory_steps.
  bool MemoryDue(int64_t step) const;
  /// True on rank 0 if the clock (checkpoint.every_s) or the file `checkpoint_now` asks for a save. The ranks must
  /// agree on it.
  bool Wanted() const;
  bool Busy() const { return saver_ && saver_->Busy(); }
  /// Rank 0, before it writes of a step: throws UserError (kFault) if another run has taken the directory while this
  /// one was stopped or cut off.
  void RequireLock();

  /// Saves the state after `step`, if all copies of it are equal. Throws AgreedError (kFault) if another run has taken
  /// the directory. Collective.
  SaveStart Save(int64_t step, const History& history, Moment moment, SaveTo to = SaveTo::kDisk);
  /// Compares all copies of the state that several ranks hold. Collective.
  std::optional<Corruption> CompareCopies() { return copies_ ? copies_->CompareNow() : std::nullopt; }
  /// Saves the state unless the latest checkpoint of this run has the same step. Collective.
  SaveStart SaveUnlessThere(int64_t step, const History& history);

  /// Reports the saves that have ended.
  void Report();
  /// Waits for the save in flight and reports. False if the last save failed.
  bool Finish();
  /// The longest save so far, from the proof to the commit, in milliseconds; twice that while a save is in flight,
  /// since a further save waits for it. 0 before the first.
  double SlowestSaveMs() const { return slowest_ms_ * (Busy() ? 2 : 1); }
  int64_t staging_bytes() const { return saver_ ? saver_->staging_bytes() : 0; }

 private:
  int64_t Restore(const std::vector<std::string>& checkpoints, int64_t refused, const std::string& branch);
  /// Nothing if it cannot be loaded.
  std::optional<int64_t> RestoreFromMemory(const MemoryGeneration& generation);
  /// The state of a checkpoint or of a copy in memory, with all checks of a load.
  Metadata LoadAndProve(const std::string& dir);
  void RequireMemory();
  void Compare(const std::string& dir);
  void CompareData(const Metadata& saved);
  /// Rank 0: reports once that moments of another type were converted.
  void ReportConversion(const std::string& dir, const Manifest& manifest);
  void WarnOfAbandoned() const;
  void Prove(const std::string& dir, const Metadata& saved) const;
  void Report(const SaveOutcome& outcome);
  void ReportCopy(const SaveOutcome& outcome);
  bool ClockWants() const;

  const Deck& deck_;
  const LoadedDeck requested_deck_;
  const DataSeen data_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Programs& programs_;
  World& world_;
  Reporter& reporter_;
  const uint32_t conditions_;        ///< for the proofs of this run
  const MemoryNodes* const nodes_;   ///< where copies in memory are; null: checkpoint.memory_steps is 0
  const MemoryNodes* memory_;        ///< where they are made: as nodes_, or null if there is no room
  std::optional<AsyncSaver> saver_;  ///< empty: there is no state
  std::optional<Copies> copies_;     ///< as saver_
  std::vector<DeckDifference> differences_;
  RunLock* lock_ = nullptr;              ///< rank 0's lock of run.dir
  std::string branch_;                   ///< id of the checkpoint that the command line named
  std::string loaded_;                   ///< what was loaded last
  std::string base_, base_id_;           ///< the checkpoint that was loaded last, or that a copy in memory came from
  std::vector<std::string> candidates_;  ///< checkpoints of this start: the one that it loaded and later ones
  int64_t newest_step_ = 0;              ///< step of the checkpoint that was saved or loaded last
  std::set<std::string> said_;           ///< messages that were printed and are not repeated
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  std::deque<double> proof_ms_;  ///< times of the saves that are not reported yet
  CheckpointNow now_;
  double slowest_ms_ = 0;
  bool last_failed_ = false;
  bool copies_fail_ = false;  ///< the last copy in memory failed, which was said
  int64_t passed_over_ = 0;
  std::vector<StepSeen> window_;
};

}  // namespace espalier
