// Why a run stops before its last step: a signal to any rank, or the time limit.
#pragma once

#include <chrono>
#include <string>

#include "espalier/comm/world.hpp"
#include "train/stopping/time_limit.hpp"

namespace espalier {

class StopReasons {
 public:
  using Clock = std::chrono::steady_clock;
  /// `began`: the start of the process. Only rank 0 reads the clock.
  StopReasons(const Deck& deck, World& world, Clock::time_point began);

  /// When the time limit will stop the run; empty without a limit, or on ranks other than 0.
  std::string Notice() const;
  void StepTook(double ms) { limit_.StepTook(ms / 1e3); }
  /// Why this rank wants to stop after this step; empty if it does not. There must be time for one more step, for
  /// `beside_ms` of additional work (validation, steps in flight), and for a save as long as the slowest so far.
  std::string StopReason(double beside_ms, double save_ms) const;
  /// The reasons of all ranks on one line, on rank 0. Collective.
  std::string AllReasons(const std::string& own) const;

 private:
  World& world_;
  const Clock::time_point began_;
  TimeLimit limit_;
};

}  // namespace espalier
