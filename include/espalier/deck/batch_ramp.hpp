// The batch-size ramp: how many sequences each optimizer step has. All code that counts sequences uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// Steps of equal size.
struct RampSize {
  int64_t sequences = 0;
  int64_t first_step = 1;  ///< the first step with this size
};

/// The first ramp_steps steps have ramp_start sequences, the next ramp_steps have ramp_step more, and so on up to
/// batch.global. Without batch.ramp_start every step has batch.global. Steps count from 1.
class BatchRamp {
 public:
  /// The batch keys of a deck without errors.
  explicit BatchRamp(const Deck::Batch& batch);
  /// All steps have `sequences` sequences.
  explicit BatchRamp(int64_t sequences) : BatchRamp(Deck::Batch{sequences, 1, 0, 1, 1}) {}

  int64_t SequencesOf(int64_t step) const { return start_ + step_ * IndexOf(step); }
  /// Sequences of the steps 1 to `step` together.
  int64_t SequencesUpTo(int64_t step) const;

  /// The largest number of steps that together have at most `sequences` sequences; 2^31 if it is larger.
  int64_t StepsWithin(int64_t sequences) const;

  /// The index of the size of `step` in Sizes().
  int64_t IndexOf(int64_t step) const;

  /// True if some step has fewer than batch.global.
  bool Grows() const { return growths_ > 0; }
  /// Every size, from the first steps' to batch.global.
  std::vector<RampSize> Sizes() const;
  /// The batch sizes of a run of `steps` steps.
  std::vector<RampSize> SizesWithin(int64_t steps) const;
  /// The first step with batch.global sequences.
  int64_t FirstFullStep() const { return growths_ * steps_ + 1; }

 private:
  int64_t start_, step_;  ///< sequences
  int64_t steps_;         ///< optimizer steps of each size
  int64_t growths_;       ///< how often the batch grows
};

/// The deck with `sequences` sequences per step, without a ramp.
Deck WithSequences(Deck deck, int64_t sequences);

/// "4 sequences a step, 4 more every 100 steps, 16 from step 301 on".
std::string Describe(const BatchRamp& ramp);

}  // namespace espalier
