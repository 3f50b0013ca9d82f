#include "espalier/model/flops.hpp"

namespace espalier {

ForwardFlops ForwardFlopsPerToken(const Deck::Model& m) {
  const double h = double(m.dim), d = h / double(m.heads), matrices = m.family == Family::kGpt2 ? 2 : 3;
  const double projections = h * d * double(m.heads + 2 * m.kv_heads) + h * h;
  return {2 * (projections + matrices * h * double(m.ffn_dim)), 2 * double(m.seq_len) * h, 2 * h * double(m.vocab)};
}

ModelFlops FlopsPerToken(const Deck& deck) {
  // Backward is twice forward: each matmul has two gradients.
  const ForwardFlops f = ForwardFlopsPerToken(deck.model);
  const double layers = double(deck.model.layers);
  return {3 * (layers * (f.matmuls + f.attention) + f.head), 3 * (layers * (f.matmuls + 2 * f.attention) + f.head)};
}

}  // namespace espalier
