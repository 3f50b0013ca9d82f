#include "espalier/model/flops.hpp"

namespace espalier {
namespace {

/// Keys that a query sees, the mean over the layers.
double VisibleKeys(const Deck::Model& m) {
  const double s = double(m.seq_len), w = double(m.sliding_window);
  double sum = 0;
  for (int l = 1; l <= m.layers; ++l) sum += HasWindow(m, l) ? w - w * w / (2 * s) : s / 2;
  return sum / double(m.layers);
}

}  // namespace

bool HasWindow(const Deck::Model& m, int layer) {
  return 0 < m.sliding_window && m.sliding_window < m.seq_len && layer > m.full_attention_layers;
}

ForwardFlops ForwardFlopsPerToken(const Deck::Model& m) {
  const double h = double(m.dim), d = double(m.head_dim), matrices = m.family == Family::kGpt2 ? 2 : 3;
  const double heads = d * double(m.heads), projections = 2 * h * (heads + d * double(m.kv_heads));
  return {2 * (projections + matrices * h * double(m.ffn_dim)), 4 * VisibleKeys(m) * heads, 2 * h * double(m.vocab)};
}

ModelFlops FlopsPerToken(const Deck& deck) {
  // Backward is twice forward: each matmul has two gradients.
  const ForwardFlops f = ForwardFlopsPerToken(deck.model);
  const double layers = double(deck.model.layers);
  return {3 * (layers * (f.matmuls + f.attention) + f.head), 3 * (layers * (f.matmuls + 2 * f.attention) + f.head)};
}

}  // namespace espalier
