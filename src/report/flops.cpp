#include "espalier/report/flops.hpp"

namespace espalier {

ModelFlops FlopsPerToken(const Deck& deck) {
  const Deck::Model& m = deck.model;
  const double h = double(m.dim), a = double(m.heads), g = double(m.kv_heads), d = h / a;
  const double matrices = m.family == "gpt2" ? 2 : 3;
  const double dense = h * d * (a + 2 * g) + a * d * h + matrices * h * double(m.ffn_dim);
  const double attention = double(m.seq_len) * a * d;
  const double layers = double(m.layers), head = h * double(m.vocab);
  return {6 * (layers * (dense + attention) + head), 6 * (layers * (dense + 2 * attention) + head)};
}

}  // namespace espalier
