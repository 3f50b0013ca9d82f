// Kinds of layers: layers of one kind have the same operations, shapes and costs. FLOPs, the split into chunks and
// `tune` count layers by kind.
#pragma once

#include <compare>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct LayerKind {
  bool window = false;   ///< attention has a sliding window that hides tokens
  bool experts = false;  ///< the feed-forward network is a mixture of experts
  auto operator<=>(const LayerKind&) const = default;
};

/// The kind of layer `layer` (1..L). Layers after the last, which predict further tokens, are of its kind.
LayerKind KindOf(const Deck::Model& model, int layer);

/// The kinds of a model, in the order of their first layers.
std::vector<LayerKind> KindsOf(const Deck::Model& model);

/// The model with `layers` layers, all of this kind.
Deck::Model WithLayersOf(Deck::Model model, const LayerKind& kind, int layers);

}  // namespace espalier
