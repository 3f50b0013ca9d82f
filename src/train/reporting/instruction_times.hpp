// ESPALIER_INSTRUCTION_TIMES=FILE: how the time of a run's last step is divided among kinds of instructions.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

/// Does nothing unless the environment names a file. Then every instruction of the last step of run.steps is timed, and
/// rank R writes FILE.R after that step: {step, rank, device, wall_s, instructions: [{lane,
/// role, kind, count, seconds, flops, bytes}]}.
class InstructionTimes {
 public:
  /// `programs` must outlive it. Throws UserError (kFault) if the file cannot be written.
  InstructionTimes(const Deck& deck, const Programs& programs, int rank);

  /// Must be called before `step` begins.
  void Before(int64_t step) const;
  /// Must be called after `step` was awaited.
  void After(int64_t step, const StepTimes& times) const;

 private:
  std::string Table(int64_t step, const StepTimes& times) const;
  double FlopsOf(const Program& program, const Instruction& instruction) const;

  const Programs& programs_;
  const std::string device_;
  const int rank_;
  const int64_t last_;  ///< step
  std::string path_;    ///< empty: not requested
};

}  // namespace espalier
