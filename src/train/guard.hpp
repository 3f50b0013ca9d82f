// How a run reacts to a step whose loss or gradient norm is not finite or a spike. The update op reads the flag
// `apply`, so such a step has changed no weight; limits of loss and norm are inputs of the op that sets it.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "espalier/checkpoint/manifest.hpp"
#include "train/programs.hpp"

namespace espalier {

/// Limits above which a step is a spike; infinity: never.
struct SpikeLimits {
  float loss = std::numeric_limits<float>::infinity();
  float norm = std::numeric_limits<float>::infinity();
};

/// spike_z sample standard deviations above the mean of the window, for loss and norm each. No limits before the window
/// is full, or with spike_z = 0.
SpikeLimits LimitsOf(const Deck::Guard& guard, const std::vector<StepSeen>& window);

class Guard {
 public:
  enum class Verdict : uint8_t { kAccept, kWarn, kStop, kSkip, kRollBack };

  /// `window`: the accepted steps before the first one, from the checkpoint.
  Guard(const Deck& deck, std::vector<StepSeen> window);

  /// Limits follow from the previous steps, so a step must not begin before the previous one is judged.
  bool WatchesSpikes() const { return deck_.guard.spike_z > 0; }
  /// The limits that the next step's update obeys: none if spikes only cause a warning.
  SpikeLimits LimitsOfUpdate() const;
  /// All ranks see the same numbers and reach the same verdict.
  Verdict Judge(float loss, float norm);
  /// Call it after a save that found copies of the state to differ.
  Verdict JudgeCorruption();
  /// A description, with numbers, of the step that was judged last if it was a spike; otherwise empty.
  const std::string& Spike() const { return spike_; }
  /// The limit of the deck that was exceeded: " (guard.max_rollbacks = 3 times it was rolled back)"; empty if none was.
  std::string Limit() const;

  /// The last accepted steps, oldest first, at most spike_window; empty with spike_z = 0.
  const std::vector<StepSeen>& window() const { return window_; }
  /// Call it after a rollback, with the window of the checkpoint.
  void GoBackTo(std::vector<StepSeen> window);

 private:
  void Accept(float loss, float norm);
  Verdict Skip();
  Verdict RollBack();
  Verdict JudgeSpike();

  const Deck& deck_;
  int64_t skips_ = 0;  ///< consecutive skips
  int64_t rollbacks_ = 0;
  std::vector<StepSeen> window_;
  SpikeLimits limits_;  ///< limits of the next step
  std::string spike_;
};

/// The first accumulator of `step`, in graph order, that is not finite, and the rank that holds it. Must be called
/// after the step, before the next one begins. Collective.
std::string FirstNonFinite(const Programs& programs, int64_t step, World& world);
/// The same when the next step is already in flight, from the results of the last awaited step: only the parameter.
std::string FirstNonFiniteOfResults(const Programs& programs, int64_t step);

}  // namespace espalier
