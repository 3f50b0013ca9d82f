// Where the time of a run's last step went, by kind of instruction: ESPALIER_INSTRUCTION_TIMES=FILE in the environment.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

/// Does nothing unless the environment names a file: then the last step of run.steps keeps a clock on every
/// instruction, and rank R writes FILE.R once that step is over: {step, rank, device, wall_s, instructions: [{lane,
/// role, kind, count, seconds, flops, bytes}]}.
class InstructionTimes {
 public:
  /// `programs` must outlive it. Throws UserError (kFault) if the file cannot be written.
  InstructionTimes(const Deck& deck, const Programs& programs, int rank);

  /// Step `step` is begun next.
  void Before(int64_t step) const;
  /// Step `step` was awaited.
  void After(int64_t step, const StepTimes& times) const;

 private:
  std::string Table(int64_t step, const StepTimes& times) const;
  double FlopsOf(const Instruction& instruction) const;

  const Programs& programs_;
  const std::string device_;
  const int rank_;
  const int64_t last_;  ///< step
  std::string path_;    ///< empty: not wanted
};

}  // namespace espalier
