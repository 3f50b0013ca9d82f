// Floating-point operations of a model, by formula: for balanced stages, model-flops utilisation (MFU) and `plan`.
#pragma once

#include "espalier/model/layer_kinds.hpp"

namespace espalier {

/// Forward operations per token of one layer. Norms, biases and activations are not counted, as is customary.
struct LayerFlops {
  double matmuls = 0;    ///< matmuls with weights
  double attention = 0;  ///< scores, and probabilities times v, of the visible pairs
};

/// With width h, heads a of width d, kv heads g, sequence s and feed-forward width f in n matrices (llama 3, gpt2 2):
/// matmuls 2 (h d (a + 2 g) + a d h + n h f), attention 2 s a d. A sliding window w leaves attention
/// 4 (w - w^2 / 2s) a d. In a layer with E experts of width m, k of them per token, and a shared one of width r, n h f
/// is h E + 3 h (k m + r): only active parameters count. Documents are not known in advance: a sequence counts as one.
LayerFlops LayerFlopsPerToken(const Deck::Model& model, const LayerKind& kind);
/// Forward operations per token of the head: 2 h V with the vocabulary V. The embedding has none.
double HeadFlopsPerToken(const Deck::Model& model);
/// Forward operations per token of all layers for further tokens, in training. Each counts as the last layer, with its
/// projection from 2 h to h and the head besides.
LayerFlops FurtherFlopsPerToken(const Deck::Model& model);

/// Forward and backward operations per token, without recomputation. With L equal layers this is Megatron-LM's formula:
///   6 (L (h d (a + 2 g) + a d h + A s a d + n h f) + h V)
/// A = 1 counts the half of the attention that a causal mask leaves, A = 2 all of it (PaLM). In layers with a sliding
/// window `causal` counts the pairs inside the window, `full` twice as many.
struct ModelFlops {
  double causal = 0;
  double full = 0;
};

ModelFlops FlopsPerToken(const Deck& deck);

}  // namespace espalier
