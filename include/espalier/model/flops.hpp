// Floating-point operations of a model, by formula: for balanced stages, model-flops utilisation (MFU) and `plan`.
#pragma once

#include "espalier/deck/deck.hpp"

namespace espalier {

/// Forward operations per token. Embedding, norms, biases and activations are not counted, as is customary.
struct ForwardFlops {
  double matmuls = 0;    ///< matmuls with the weights of one layer
  double attention = 0;  ///< mean per layer: scores, and probabilities times v, of the visible pairs
  double head = 0;
};

/// Whether layer `layer` (1..L) has a sliding window that hides tokens.
bool HasWindow(const Deck::Model& model, int layer);

/// With width h, heads a of width d, kv heads g, sequence s, feed-forward width f in n matrices (llama 3, gpt2 2) and
/// vocabulary V: matmuls 2 (h d (a + 2 g) + a d h + n h f), attention 2 s a d, head 2 h V. A sliding window w leaves
/// attention 4 (w - w^2 / 2s) a d. Documents are not known in advance: a sequence counts as one.
ForwardFlops ForwardFlopsPerToken(const Deck::Model& model);

/// Forward and backward operations per token, without recomputation. Megatron-LM's formula:
///   6 (L (h d (a + 2 g) + a d h + A s a d + n h f) + h V),
/// with L layers. A = 1 counts the half of the attention that a causal mask leaves, A = 2 all of it (PaLM). In layers
/// with a sliding window `causal` counts the pairs inside the window, `full` twice as many.
struct ModelFlops {
  double causal = 0;
  double full = 0;
};

ModelFlops FlopsPerToken(const Deck& deck);

}  // namespace espalier
