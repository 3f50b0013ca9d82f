#include "espalier/model/flops.hpp"

namespace espalier {
namespace {

/// Weights that a token meets in a layer with experts: the router, its experts, and the shared one.
double ExpertWeightsPerToken(const Deck::Model& m) {
  const auto& e = m.experts;
  const double width = double(e.per_token) * double(e.ffn_dim) + double(e.shared_ffn_dim);
  const double routers = double(e.count) + (e.shared_ffn_dim > 0 && e.shared_gate ? 1 : 0);
  return double(m.dim) * (routers + 3 * width);
}

/// Weights of the projections of attention.
double ProjectionWeights(const Deck::Model& m) {
  const double h = double(m.dim), q = double(m.heads) * double(m.head_dim), o = double(m.heads) * double(m.v_dim);
  if (m.attention == AttentionKind::kHeads)
    return h * (q + o + double(m.kv_heads) * (double(m.head_dim) + double(m.v_dim)));
  const double r = double(m.q_rank), kv = double(m.kv_rank), rope = double(m.rope_dim);
  const double queries = r > 0 ? h * r + r * q : h * q;
  return queries + h * (kv + rope) + kv * (q - double(m.heads) * rope + o) + o * h;
}

}  // namespace

LayerFlops LayerFlopsPerToken(const Deck::Model& m, const LayerKind& kind) {
  const double h = double(m.dim), matrices = m.family == Family::kGpt2 ? 2 : 3;
  const double s = double(m.seq_len), w = double(m.sliding_window), visible = kind.window ? w - w * w / (2 * s) : s / 2;
  const double features = double(m.heads) * (double(m.head_dim) + double(m.v_dim));  // of scores and of their sums
  const double dense = matrices * h * double(m.ffn_dim);
  return {2 * (ProjectionWeights(m) + (kind.experts ? ExpertWeightsPerToken(m) : dense)), 2 * visible * features};
}

double HeadFlopsPerToken(const Deck::Model& m) { return 2 * double(m.dim) * double(m.vocab); }

LayerFlops FurtherFlopsPerToken(const Deck::Model& m) {
  LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, m.layers));
  const double h = double(m.dim), depths = m.mtp_layers;
  return {depths * (flops.matmuls + 2 * h * 2 * h + HeadFlopsPerToken(m)), depths * flops.attention};
}

ModelFlops FlopsPerToken(const Deck& deck) {
  const Deck::Model& m = deck.model;
  auto [matmuls, attention] = FurtherFlopsPerToken(m);
  matmuls += HeadFlopsPerToken(m);
  for (int layer = 1; layer <= m.layers; ++layer) {
    const LayerFlops flops = LayerFlopsPerToken(m, KindOf(m, layer));
    matmuls += flops.matmuls;
    attention += flops.attention;
  }
  // Backward is twice forward: each matmul has two gradients.
  return {3 * (matmuls + attention), 3 * (matmuls + 2 * attention)};
}

}  // namespace espalier
