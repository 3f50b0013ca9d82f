// Multi-token prediction: names of what layers that predict further tokens have in a training program. Depth k, from 1
// on, reads the embedding of the token k places ahead and predicts the one k + 1 places ahead.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <string>
#include <string_view>

namespace espalier {

/// The number of the layer, from 0, that a weight of a Llama belongs to; -1: none.
inline int64_t LayerOfWeight(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(kLayers)) std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

/// Inputs i32[b,s]: the tokens k places ahead, and the targets k + 1 places ahead (-1: none).
inline std::string IdsOfDepth(int k) { return fmt::format("ids.{}", k); }
inline std::string TargetsOfDepth(int k) { return fmt::format("targets.{}", k); }

/// f32[]: the sum of the cross-entropies of a depth, the number of its targets, and their quotient over a step.
inline std::string LossOfDepth(int k) { return fmt::format("mtp_loss.{}", k); }
inline std::string CountOfDepth(int k) { return fmt::format("mtp_count.{}", k); }
inline std::string MeanLossOfDepth(int k) { return fmt::format("mean_mtp_loss.{}", k); }

}  // namespace espalier
