// Saving and loading within a run: when, with which proof, and what is said about it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/deck/compare.hpp"
#include "espalier/report/report.hpp"
#include "train/programs.hpp"
#include "train/startup/find_start.hpp"
#include "train/state/checkpoint_now.hpp"

namespace espalier {

/// When a save comes. What follows may show that its weights are wrecked (finite, but not their gradients): until then
/// the checkpoint before it stays too, whatever checkpoint.keep says.
enum class Moment : uint8_t {
  kBetweenSteps,
  kAtTheEnd,
  kAfterSkip,  ///< at the end, and the last step was left out by the guard: no older checkpoint is removed
};

class Checkpointing {
 public:
  /// Collective; takes the staging buffer. `asked` is the deck before its device was chosen: what continues from a
  /// checkpoint chooses anew. `data`: what the run trains on. The other arguments must outlive it.
  Checkpointing(const Deck& deck, LoadedDeck asked, const DataSeen& data, const Programs& programs, World& world,
                MpiWorld* mpi, Reporter& reporter);

  /// Loads the first of start.checkpoints that is whole, stepping back as far as checkpoint.fallback allows, and proves
  /// it; says which checkpoints of the directory the run leaves behind. Returns its step. `start` must outlive this.
  /// Collective.
  int64_t Restore(Start& start);
  /// What differs between the deck and that of the checkpoint loaded last; "data" if the training data do.
  const std::vector<DeckDifference>& differences() const { return differences_; }
  /// As Restore, of the checkpoint that this run saved or loaded last, after the save in flight; -1 if there is none.
  /// Collective.
  int64_t RollBack();

  /// Samples that were consumed beside those of the steps done, since the run went on behind a batch.
  int64_t passed_over() const { return passed_over_; }
  void PassOver(int64_t samples) { passed_over_ = samples; }

  /// By checkpoint.every_steps.
  bool Due(int64_t step) const;
  /// Rank 0's clock (checkpoint.every_s) says that it is time, or the file `checkpoint_now` asks for it. For the ranks
  /// to agree on.
  bool Wanted() const;
  bool Busy() const { return saver_->Busy(); }

  /// Saves the state after `step`; returns how long training stood still for it, in milliseconds. Throws UserError
  /// (kFault) if another run has taken the directory. Collective.
  double Save(int64_t step, const std::vector<double>& losses, Moment moment);
  /// Saves it, before a first step, unless the checkpoint that was loaded is the one of that name. Collective.
  void SaveUnlessThere(int64_t step, const std::vector<double>& losses);

  /// Reports the saves that have ended.
  void Report();
  /// Waits for the save in flight and reports. False if the last save failed.
  bool Finish();
  /// Of the saves so far, from the proof to the commit; 0: none yet. One in flight counts as one more to wait for.
  double SlowestSaveMs() const { return slowest_ms_ * (Busy() ? 2 : 1); }
  int64_t staging_bytes() const { return saver_->staging_bytes(); }

 private:
  int64_t Restore(const std::vector<std::string>& checkpoints, int64_t refused, const std::string& branch);
  void Compare(const std::string& dir);
  void CompareData(const Metadata& saved);
  void SayAbandoned() const;
  void Prove(const std::string& dir, const Metadata& saved) const;
  void Report(const SaveOutcome& outcome);
  bool ClockWants() const;

  const Deck& deck_;
  const LoadedDeck asked_;
  const DataSeen data_;
  const Programs& programs_;
  World& world_;
  Reporter& reporter_;
  const uint32_t conditions_;  ///< of every proof of this run
  std::optional<AsyncSaver> saver_;
  std::vector<DeckDifference> differences_;
  RunLock* lock_ = nullptr;         ///< rank 0's, of run.dir
  std::string branch_;              ///< id of the checkpoint that the run was told to start from
  std::string loaded_, loaded_id_;  ///< the checkpoint that was loaded last
  std::set<std::string> said_;      ///< warnings
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  std::deque<double> proof_ms_;  ///< of the saves not yet reported
  CheckpointNow now_;
  double slowest_ms_ = 0;
  bool last_failed_ = false;
  int64_t passed_over_ = 0;
};

}  // namespace espalier
