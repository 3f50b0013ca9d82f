// Setup: the parts of a run.
#pragma once

#include <string>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/report/report.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/train/trainer.hpp"
#include "train/evaluation.hpp"
#include "train/parts.hpp"
#include "train/programs.hpp"
#include "train/reporting/instruction_times.hpp"
#include "train/reporting/measured_costs.hpp"
#include "train/reporting/tracer.hpp"
#include "train/startup/find_start.hpp"
#include "train/startup/world_check.hpp"
#include "train/state/checkpointing.hpp"
#include "train/stopping/stop_reasons.hpp"
#include "train/watch.hpp"

namespace espalier {

/// When parts of the start were complete, in milliseconds from the start of the process.
struct StartTimes {
  double found_ms = 0;   ///< MPI, deck, data, checkpoints to try
  double set_up_ms = 0;  ///< devices, programs, memory
  double state_ms = 0;   ///< weights and moments
};

/// A run that is set up: its parts are complete, and none is replaced until the run has ended. State that changes from
/// step to step is in StepLoop.
struct Run {
  // The job.
  const RunOptions& options;
  World& world;
  const std::string faults;  ///< injected faults (ESPALIER_FAULT), in words; empty: none

  // Model and data.
  const Start& start;

  // Devices and programs.
  const Threads threads;
  const Device& device;
  WorldCheck& world_check;  ///< rank 0 checks in the background that the programs of all ranks fit together
  const Programs& programs;
  const InstructionTimes& instruction_times;
  MeasuredCosts& measured_costs;
  const Evaluation* const evaluation;  ///< null: the deck has no validation

  // Watching, reporting, saving and stopping.
  Watch& watch;
  const PeakRate peak;  ///< on rank 0
  Reporter& reporter;
  Checkpointing& checkpoints;
  StopReasons& stop_reasons;
  Tracer& tracer;

  /// The deck with the chosen device.
  const Deck& deck() const { return start.deck(); }
  bool IsRankZero() const { return world.Rank() == 0; }
  /// A step takes this multiple of the reported time: run.dilation on a device that waits.
  double Dilation() const { return device.Computes() ? 1 : deck().run.dilation; }
};

/// Chooses threads and devices, compiles, takes the memory of every rank, and opens metrics.jsonl and the checkpoints.
/// `log` is connected to the report; `parts` owns the new objects. Writes the chosen device into the deck of `start`.
/// Collective.
Run SetUp(const RunOptions& options, std::string faults, Start& start, World& world, MpiWorld* mpi, RunLog& log,
          Parts& parts);

/// The state to begin with: the first checkpoint of `start` that can be loaded, or initial weights. Returns its step.
/// Collective.
int64_t Restore(const Run& run, Start& start);

}  // namespace espalier
