// report.costs: times of a run's kernels and transfers, added to a cluster file at its end.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/costs/cluster.hpp"
#include "train/measuring/kernel_times.hpp"
#include "train/measuring/machine.hpp"
#include "train/measuring/transfer_times.hpp"
#include "train/programs.hpp"

namespace espalier {

/// Does nothing if the deck names no file. Otherwise it times a few steps, spread over the run, and writes medians.
class MeasuredCosts {
 public:
  /// `programs` must outlive it. Throws UserError (kDeck) if the file exists but cannot be read or belongs to another
  /// machine, or if its folder does not exist. Collective.
  MeasuredCosts(const Deck& deck, const Programs& programs, World& world, const MpiWorld* mpi);

  /// True if the step is timed: no other step may be in flight meanwhile. Steps of a start are counted from `first`.
  bool Times(int64_t step) const;
  /// Must be called before the first step.
  void BeginWith(int64_t first) { first_ = first; }
  /// Must be called just before `step` begins. Collective.
  void Before(int64_t step);
  /// Must be called after `step` was awaited.
  void After(int64_t step, const StepTimes& times);

  /// Merges the measurements of all ranks into the file, by one rename, and reports what was added. A file that cannot
  /// be written only causes a warning: the run is done. Collective.
  void Write(World& world) const;

 private:
  /// On rank 0: the file with new rows.
  void AddRows(const CostTable& added) const;

  const Programs& programs_;
  const std::string file_;
  const int64_t last_;  ///< last step of the run
  const MpiWorld* const mpi_;
  std::map<const Training*, KernelTimes> times_;  ///< times of the training programs that were timed
  std::optional<TransferTimes> transfers_;        ///< not set: no file is named
  std::optional<Cluster> machine_;                ///< on rank 0, if there is no file yet
  int64_t first_ = 1;                             ///< first step of this start
};

}  // namespace espalier
