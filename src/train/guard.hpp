// What a run does after a step whose loss or gradient norm is not finite. The update op reads the flag `apply`, so such
// a step has changed no weight.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

class Guard {
 public:
  enum class Verdict : uint8_t { kFinite, kStop, kSkip, kRollBack };

  explicit Guard(const Deck& deck) : deck_(deck) {}

  /// All ranks see the same numbers and come to the same verdict.
  Verdict Judge(float loss, float norm);
  /// The limit of the deck that was exceeded: " (guard.max_rollbacks = 3 times it was rolled back)"; empty if none was.
  std::string Limit() const;

 private:
  const Deck& deck_;
  int64_t skips_ = 0;  ///< in a row
  int64_t rollbacks_ = 0;
};

/// The first accumulator, in graph order, that is not finite, and the rank that holds it. Must be called after the
/// step, before the next one begins. Collective.
std::string FirstNonFinite(const Programs& programs, World& world);
/// The same when the next step is already in flight, from the results of the last awaited step: only the parameter.
std::string FirstNonFiniteOfResults(const Programs& programs);

}  // namespace espalier
