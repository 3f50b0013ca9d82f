// The lines at the end of a run that summarize this start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/report/block.hpp"
#include "espalier/report/report.hpp"

namespace espalier {

class RunSummary {
 public:
  void Add(const StepRecord& record);
  void Add(const CheckpointRecord& record);
  void AddValidation(int64_t step, double loss) { validation_.Add(step, loss); }
  void AddFailedSave() { ++failed_saves_; }
  void AddSpike() { ++spikes_; }
  void AddSkip() { ++skips_; }
  void AddRollback() { ++rollbacks_; }
  /// As Reporter::End.
  void AddMemory(const std::vector<int64_t>& rank_peak_bytes, int64_t outside_bytes);

  /// "done steps 1 to 20: 61440 tokens in 12s, ..." and so on; without lines about things that did not occur. The rate
  /// is the mean of all steps except the first, if there are others. A run that sleeps has no losses, and without a
  /// peak there is no mfu.
  BlockLines Lines(const ReportOptions& options) const;

 private:
  struct Sums {
    double tokens = 0, ms = 0;
    void Add(const StepRecord& record);
  };
  /// The last loss of its kind, and the lowest finite one.
  struct Losses {
    int64_t step = 0, lowest_step = 0;  ///< 0: none
    double last = 0, lowest = 0;
    void Add(int64_t at, double loss);
    std::string Text() const;
  };
  std::string StepsText(const ReportOptions& options) const;
  std::string GuardText() const;
  std::string SavesText() const;
  std::string WaitsText() const;
  std::string MemoryText() const;

  int64_t first_step_ = 0;
  Sums first_, others_;
  Losses training_, validation_;
  int64_t saves_ = 0, failed_saves_ = 0, saved_bytes_ = 0;
  double data_ms_ = 0, save_ms_ = 0;  ///< time that training waited
  int64_t spikes_ = 0, skips_ = 0, rollbacks_ = 0;
  int64_t peak_bytes_ = 0, peak_rank_ = 0, outside_bytes_ = 0;
};

}  // namespace espalier
