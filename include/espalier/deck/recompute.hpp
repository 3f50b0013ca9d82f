// Recomputation in backward, layer by layer: recompute.mode, recompute.ops and the rules of recompute.layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

class RecomputeOps {
 public:
  void Add(RecomputeOp op) { bits_ |= Bit(op); }
  bool Has(RecomputeOp op) const { return (bits_ & Bit(op)) != 0; }
  bool Empty() const { return bits_ == 0; }
  bool operator==(const RecomputeOps&) const = default;
  auto operator<=>(const RecomputeOps&) const = default;

 private:
  static uint32_t Bit(RecomputeOp op) { return uint32_t{1} << static_cast<int>(op); }
  uint32_t bits_ = 0;
};

/// Recomputation of a layer: the mode, and further ops.
struct LayerRecompute {
  RecomputeMode mode = RecomputeMode::kNone;  ///< never kAuto
  RecomputeOps ops = {};
  bool operator==(const LayerRecompute&) const = default;
  auto operator<=>(const LayerRecompute&) const = default;
};
/// "none", "selective", "norm+activation": the first part of a rule.
std::string ToString(const LayerRecompute& what);

/// "first 4", "every 2" or "0-3, 8": some layers. The value of offload.layers, and the second part of a rule.
struct LayerSet {
  enum class Which : uint8_t { kListed, kFirst, kEvery };
  Which which = Which::kListed;
  int64_t number = 0;                               ///< of kFirst and kEvery
  std::vector<std::pair<int64_t, int64_t>> ranges;  ///< of kListed: first and last layer, from 0

  /// `layer`: from 0, of the model; `place`: among the layers of its pipeline stage, from 0.
  bool Names(int64_t layer, int64_t place) const;
};
/// `fault` describes a malformed text, or a layer that is not among `layers`; otherwise it is empty.
struct ParsedLayerSet {
  LayerSet set;
  std::string fault;
};
ParsedLayerSet ParseLayerSet(std::string_view text, int64_t layers);
/// "0-3, 8", of layers in ascending order.
std::string LayerRanges(const std::vector<int>& layers);

/// An entry of recompute.layers: what is computed again of which layers.
struct RecomputeRule {
  LayerRecompute what;
  LayerSet layers;
};

/// Reads "WHAT: LAYERS" for a model of so many layers. `fault` as in ParsedLayerSet.
struct ParsedRecomputeRule {
  RecomputeRule rule;
  std::string fault;
};
ParsedRecomputeRule ParseRecomputeRule(std::string_view entry, int64_t layers);

/// The rules of a deck that is valid, read once.
class RecomputePlan {
 public:
  explicit RecomputePlan(const Deck::Recompute& recompute);
  /// The values of recompute.mode and recompute.ops, for layers that no rule names, the embedding and the head.
  const LayerRecompute& Others() const { return others_; }
  /// The first rule that names the layer (see LayerSet::Names).
  const LayerRecompute& Of(int64_t layer, int64_t place) const;
  /// Nothing is computed again.
  bool Empty() const;

 private:
  LayerRecompute others_;
  std::vector<RecomputeRule> rules_;
};

}  // namespace espalier
