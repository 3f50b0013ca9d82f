// What proves that loaded weights are the saved ones: the loss of one fixed microbatch, computed at the save and again
// at the load. Its tokens follow from vocabulary and sequence length alone; every sequence of it is the same one, so
// that every rank's weights take part and the loss does not depend on how many there are.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

/// Stands for everything that may change the last bits of a loss, on any rank, and does not change within a run. On
/// rank 0; 0 elsewhere. Collective.
uint32_t ConditionsOf(const Deck& deck, const Programs& programs, World& world);

/// The proof of the weights as they are now, made under `conditions`. Collective.
Proof MakeProof(const Deck& deck, const Programs& programs, uint32_t conditions);

/// Why `now`, made of a loaded checkpoint, does not bear out what was saved; empty if it does. Bitwise under equal
/// conditions, else within 1e-5 of the loss, or 1e-2 if one of them was computed in bf16.
std::string ProofMistake(const Proof& saved, const Proof& now);

}  // namespace espalier
