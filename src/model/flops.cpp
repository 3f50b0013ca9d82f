#include "espalier/model/flops.hpp"

namespace espalier {

LayerFlops LayerFlopsPerToken(const Deck::Model& m, const LayerKind& kind) {
  const double h = double(m.dim), d = double(m.head_dim), matrices = m.family == Family::kGpt2 ? 2 : 3;
  const double s = double(m.seq_len), w = double(m.sliding_window), visible = kind.window ? w - w * w / (2 * s) : s / 2;
  const double heads = d * double(m.heads), projections = 2 * h * (heads + d * double(m.kv_heads));
  return {2 * (projections + matrices * h * double(m.ffn_dim)), 4 * visible * heads};
}

double HeadFlopsPerToken(const Deck::Model& m) { return 2 * double(m.dim) * double(m.vocab); }

ModelFlops FlopsPerToken(const Deck& deck) {
  const Deck::Model& m = deck.model;
  double matmuls = HeadFlopsPerToken(m), attention = 0;
  for (int layer = 1; layer <= m.layers; ++layer) {
    const LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, layer));
    matmuls += flops.matmuls;
    attention += flops.attention;
  }
  // Backward is twice forward: each matmul has two gradients.
  return {3 * (matmuls + attention), 3 * (matmuls + 2 * attention)};
}

}  // namespace espalier
