// Ranks that differ only in their samples compute with the same weights. Now and then all of them compute the gradients
// of one and the same microbatch, and a rank whose bits differ has computed wrongly, or with a weight that has changed
// in its memory. So each rank's computation is repeated on another one, also where each holds other parts of the state.
#pragma once

#include <optional>

#include "espalier/checkpoint/copies.hpp"
#include "train/programs.hpp"

namespace espalier {

/// Computes forward and backward of one microbatch, whose tokens and dropout follow from `step`, and compares losses
/// and gradients before their reduction. Changes no state. Names the ranks that differ from more than half of their
/// peers, or all of them; where ranks of one replica exchange activations (tp, cp, ep, pp), a wrong number reaches all
/// of them, and all are named. If some differ, all compute once more: if some of those named do not get their own bits
/// again, only they stay. The same on every rank. CHECKs that `programs` has gradients. Collective.
std::optional<Corruption> CompareComputation(const Deck& deck, const Programs& programs, World& world, int64_t step);

}  // namespace espalier
