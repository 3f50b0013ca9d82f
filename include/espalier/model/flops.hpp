// Floating-point operations of a model, by formula: for the balance of stages, the model-flops utilisation (MFU) and
// `plan`.
#pragma once

#include "espalier/deck/deck.hpp"

namespace espalier {

/// Forward operations of one token. Embedding, norms, biases and activations are left out, as everybody does.
struct ForwardFlops {
  double products = 0;   ///< of a layer with its weights
  double attention = 0;  ///< scores and their product with v in a layer, the half that a causal mask leaves
  double head = 0;
};

/// With width h, heads a of width d, kv heads g, sequence s, feed-forward width f in n matrices (llama 3, gpt2 2) and
/// vocabulary V: products 2 (h d (a + 2 g) + a d h + n h f), attention 2 s a d, head 2 h V.
ForwardFlops ForwardFlopsPerToken(const Deck::Model& model);

/// Forward and backward of one token; recomputation does not count. Megatron-LM's formula:
///   6 (L (h d (a + 2 g) + a d h + A s a d + n h f) + h V),
/// with L layers. A = 1 counts the half of the attention that a causal mask leaves, A = 2 all of it (PaLM).
struct ModelFlops {
  double causal = 0;
  double full = 0;
};

ModelFlops FlopsPerToken(const Deck& deck);

}  // namespace espalier
