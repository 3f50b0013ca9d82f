#include "espalier/model/flops.hpp"

namespace espalier {

ForwardFlops ForwardFlopsPerToken(const Deck::Model& m) {
  const double h = double(m.dim), d = double(m.head_dim), matrices = m.family == Family::kGpt2 ? 2 : 3;
  const double heads = d * double(m.heads), projections = 2 * h * (heads + d * double(m.kv_heads));
  return {2 * (projections + matrices * h * double(m.ffn_dim)), 2 * double(m.seq_len) * heads, 2 * h * double(m.vocab)};
}

ModelFlops FlopsPerToken(const Deck& deck) {
  // Backward is twice forward: each matmul has two gradients.
  const ForwardFlops f = ForwardFlopsPerToken(deck.model);
  const double layers = double(deck.model.layers);
  return {3 * (layers * (f.matmuls + f.attention) + f.head), 3 * (layers * (f.matmuls + 2 * f.attention) + f.head)};
}

}  // namespace espalier
