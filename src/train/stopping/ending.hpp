// Why a run ends before its last step: a signal to any rank, or the clock.
#pragma once

#include <chrono>
#include <string>

#include "espalier/comm/world.hpp"
#include "train/stopping/time_limit.hpp"

namespace espalier {

class Ending {
 public:
  using Clock = std::chrono::steady_clock;
  /// `began`: the beginning of the process. Rank 0 reads the clock for all.
  Ending(const Deck& deck, World& world, Clock::time_point began);

  /// When the clock will end the run; empty: never, or another rank knows.
  std::string Notice() const;
  void StepTook(double ms) { limit_.StepTook(ms / 1e3); }
  /// Why this rank wants the end; empty: it does not. What the next step brings beside itself (a validation) and the
  /// longest save so far, in milliseconds, decide whether there is time for it.
  std::string Wish(double beside_ms, double save_ms) const;
  /// The wishes of all ranks as one line, on rank 0. Collective.
  std::string Reasons(const std::string& mine) const;

 private:
  World& world_;
  const Clock::time_point began_;
  TimeLimit limit_;
};

}  // namespace espalier
