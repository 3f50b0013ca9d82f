// Floating-point operations of a model, by formula, for the model-flops utilisation (MFU).
#pragma once

#include "espalier/deck/deck.hpp"

namespace espalier {

/// Forward and backward of one token, in floating-point operations; recomputation does not count. Megatron-LM's
/// formula:
///   6 (L (h d (a + 2 g) + a d h + A s a d + n h f) + h V),
/// with layers L, width h, heads a of width d, kv heads g, sequence s, feed-forward width f in n matrices (llama 3,
/// gpt2 2) and vocabulary V. A = 1 counts the half of the attention that a causal mask leaves, A = 2 all of it (PaLM).
struct ModelFlops {
  double causal = 0;
  double full = 0;
};

ModelFlops FlopsPerToken(const Deck& deck);

}  // namespace espalier
