// What a run does after a step whose loss or gradient is not finite. The update has read `apply` and left the weights
// alone.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

class Guard {
 public:
  enum class Verdict : uint8_t { kFinite, kStop, kSkip, kRollBack };

  explicit Guard(const Deck& deck) : deck_(deck) {}

  /// All ranks see the same numbers, and judge alike.
  Verdict Judge(float loss, float norm);
  /// What the deck allows no more of, " (the 4th rollback; guard.max_rollbacks = 3)"; empty if it asks to stop at once.
  std::string Limit() const;

 private:
  const Deck& deck_;
  int64_t skips_ = 0;  ///< in a row
  int64_t rollbacks_ = 0;
};

/// The first of what a step sums up that is not finite, in the order of the graph, and the rank that holds it; read
/// after the step, while its sums are still there. Collective.
std::string FirstNonFinite(const Programs& programs, World& world);
/// As much as the results of the step last awaited tell, when the next one is under way already: the first parameter.
std::string FirstNonFiniteOfResults(const Programs& programs);

}  // namespace espalier
