#include "espalier/model/layer_kinds.hpp"

#include <algorithm>

namespace espalier {

LayerKind KindOf(const Deck::Model& m, int layer) {
  layer = std::min(layer, m.layers);
  const int after = layer - 1 - m.experts.first_layer;  // layers since the first with experts
  const bool full =
      layer <= m.full_attention_layers || (m.full_attention_every > 0 && layer % m.full_attention_every == 0);
  return {.window = 0 < m.sliding_window && m.sliding_window < m.seq_len && !full,
          .experts = m.experts.count > 0 && after >= 0 && after % m.experts.every == 0};
}

std::vector<LayerKind> KindsOf(const Deck::Model& model) {
  std::vector<LayerKind> kinds;
  for (int layer = 1; layer <= model.layers; ++layer)
    if (const LayerKind kind = KindOf(model, layer); std::ranges::find(kinds, kind) == kinds.end())
      kinds.push_back(kind);
  return kinds;
}

Deck::Model WithLayersOf(Deck::Model model, const LayerKind& kind, int layers) {
  model.layers = layers;
  model.full_attention_layers = model.full_attention_every = 0;
  if (!kind.window) model.sliding_window = 0;
  model.experts.first_layer = 0;
  model.experts.every = 1;
  if (!kind.experts) model.experts.count = 0;
  return model;
}

}  // namespace espalier
