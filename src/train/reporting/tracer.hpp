// Times of all instructions in some steps, on all ranks: report.trace, as a picture and a trace. On GPUs, whose clocks
// do not separate communication in other steps, also one step of each start, for its line in metrics.jsonl.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/step_range.hpp"
#include "espalier/report/report.hpp"
#include "train/programs.hpp"
#include "train/reporting/measured_timeline.hpp"

namespace espalier {

/// After each step of report.trace, rank 0 writes <run.dir>/trace/step-00000010.svg and .json, and replaces files of an
/// earlier run of the same step. The picture shows all ranks, or rank 0's pipeline if there are more than kMaxTraced.
/// Profilers that wait for the device's sign record the same steps. Results do not depend on tracing.
class Tracer {
 public:
  static constexpr int kMaxTraced = 64;

  /// Makes the folder. All arguments must outlive it. Throws AgreedError if the folder cannot
  /// be made. Collective.
  Tracer(const Deck& deck, const Programs& programs, World& world, Reporter& reporter);

  /// Which steps and ranks are traced, and the folder; empty if none are.
  std::string Notice() const;

  /// This start begins with `step`. On several GPUs its third step is traced, without files, since libraries are loaded
  /// in the first ones. In a shorter run the last step is traced.
  void BeginWith(int64_t step);

  /// No other step may be in flight during such a step, so that its times count from its own beginning.
  bool Traces(int64_t step) const { return steps_.Has(step) || step == sampled_; }
  /// Must be called just before a traced step begins: measures the clock offsets of the nodes. Collective.
  void Before(int64_t step);
  /// Must be called after a traced step was awaited: writes the files. A file that cannot be written only causes a
  /// warning. Returns rank 0's part of the step on rank 0, nothing on other ranks. Collective.
  std::optional<Breakdown> After(int64_t step);

 private:
  MeasuredRank Measured(const Executor& executor) const;
  Timeline TimelineOf(int64_t step, const std::vector<MeasuredRank>& ranks);
  void Write(int64_t step, const Timeline& timeline);
  std::shared_ptr<const Program> ProgramOf(int64_t step, int rank);

  const Programs& programs_;
  World& world_;
  Reporter& reporter_;
  const std::string deck_name_;
  const std::string folder_;
  const StepRange steps_;
  const int64_t last_step_;  ///< last step of the run
  int64_t sampled_ = -1;     ///< traced without files; -1: none
  bool profiling_ = false;   ///< a profiler records the steps of report.trace
  const double dilation_;    ///< on a device that waits, spans are in the cluster's time, clocks are not; otherwise 1
  const std::vector<int> traced_;
  std::vector<double> barriers_us_;
  std::vector<int> representatives_;  ///< by rank
  /// By compilation and representative, on rank 0.
  std::map<std::pair<const Compilation*, int>, std::shared_ptr<const Program>> compiled_;
};

}  // namespace espalier
