// The programs of a run on this rank. They share its arenas and the states in them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/data/batch_loader.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {

/// A program in memory, ready to run.
struct Runnable {
  Program program;
  std::unique_ptr<Executor> executor;

  /// Fills every input. Programs share the memory above the states, so every input must be filled before each step.
  void Fill(const Batch& batch, const std::vector<int64_t>& positions) const;
  /// Sets the number of the step (from 1), on which dropout and the like depend. For programs without an optimizer.
  void FillStep(int64_t step) const;
  /// Inputs of the optimizer in step `step` (from 1): its number, the learning rates, and no limits of loss and norm.
  void FillScalars(const Deck& deck, int64_t step) const;
};

/// The part of a global batch that the rank at `coordinate` holds.
BatchLayout LayoutOfBatch(const Compilation& compilation, const Coordinate& coordinate);

/// Training with steps of one size, and the compilation from which the programs of other ranks are made.
struct Training {
  Compilation compilation;
  Runnable runnable;

  const Program& program() const { return runnable.program; }
  Executor& executor() const { return *runnable.executor; }
};

class Programs {
 public:
  /// Compiles training with every size of the batch ramp, proof and, if the deck asks for it, evaluation and copies of
  /// weights; allocates memory on `device` and creates the communicators. `mpi` is null for a world of one process;
  /// `device` must outlive this. Collective.
  Programs(const Deck& deck, World& world, MpiWorld* mpi, Device& device);

  /// The number of sequences of each step.
  const BatchRamp& ramp() const { return ramp_; }
  /// The training program that `step` runs.
  const Training& TrainingOf(int64_t step) const { return trainings_[static_cast<size_t>(ramp_.IndexOf(step))]; }
  /// Trainings of all batch sizes, the largest last.
  const std::vector<Training>& trainings() const { return trainings_; }
  /// Time to compile these, in milliseconds.
  double training_compile_ms() const { return training_compile_ms_; }

  /// For properties that do not depend on the batch size: the compilation for batch.global sequences.
  const Compilation& compilation() const { return trainings_.back().compilation; }
  const Coordinate& coordinate() const { return coordinate_; }
  const Arena& arena() const { return *arena_; }
  /// The arena on the host; null: nothing is there.
  const Arena* host() const { return host_.get(); }
  /// Memory that was free for this rank before it took the arena; memory shared with other ranks counts in full.
  int64_t free_bytes() const { return free_bytes_; }
  Device& device() const { return device_; }

  /// Training with batch.global sequences. All training programs have the same states in the same places.
  const Training& training() const { return trainings_.back(); }
  /// Forward of one microbatch: "mean_loss".
  const Runnable& proof() const { return proof_; }
  /// Null if the deck does not evaluate.
  const Runnable* evaluate() const { return evaluate_ ? &*evaluate_ : nullptr; }

  /// Forward and backward of one microbatch: this rank's part of the gradients. Null if the deck does not compare what
  /// ranks compute.
  const Runnable* gradients() const { return gradients_ ? &*gradients_ : nullptr; }

  /// Makes the copies of this rank's master weights in the compute type, which all programs read and training updates.
  /// Call it after anything else has written masters.
  void CopyWeights() const;

  /// Every state of every stage, and this rank's shards of them.
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  const std::vector<LocalTensor>& local() const { return local_; }

  /// This rank's part of a batch of batch.global sequences.
  const BatchLayout& layout() const { return layout_; }

 private:
  std::vector<Runnable*> All();
  void Compile(const Deck& deck, World& world);
  void CompileTraining(const Deck& deck, World& world);
  Runnable CompileOther(const Deck& deck, Purpose purpose) const;
  /// Compiles anew with the fastest way of attention's backward whose programs fit (run.attention_backward = "auto").
  void ChooseBackward(const Deck& deck, World& world);
  /// The arenas that the programs of this rank need.
  BySpace<int64_t> Arenas();
  /// The GEMMs of all programs of this rank.
  std::vector<GemmDemand> Gemms();
  void MakeExecutors(World& world, MpiWorld* mpi);

  const BatchRamp ramp_;
  std::vector<Training> trainings_;
  double training_compile_ms_ = 0;
  Coordinate coordinate_{};
  Device& device_;
  int64_t free_bytes_ = 0;
  std::unique_ptr<Arena> arena_, host_;
  Runnable proof_;
  std::optional<Runnable> evaluate_, copies_, gradients_;
  std::vector<StateTensor> tensors_;
  std::vector<LocalTensor> local_;
  BatchLayout layout_;
};

}  // namespace espalier
