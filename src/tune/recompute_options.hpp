// What a layer may compute again, as a chain of options from nothing to everything.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "espalier/deck/recompute.hpp"
#include "tune/profile.hpp"

namespace espalier {

/// What a part of the model keeps and how much it works if it recomputes this.
struct RecomputeOption {
  LayerRecompute what;
  int64_t kept = 0, kept_for_w = 0;  ///< bytes of a microbatch: from F to B, and from B to W
  double work = 0;                   ///< rough time of a microbatch, forward and backward
};

/// Profiles options of every kind of layer, each once.
class RecomputeOptions {
 public:
  /// `deck` with known dp_shard.
  explicit RecomputeOptions(const Deck& deck);

  /// The options of a part of which `before_b` microbatches are in flight between F and B, and `before_w` between B
  /// and W. Each needs less memory than the one before, for the least time per byte: work grows faster and faster.
  std::vector<RecomputeOption> Chain(Part part, int before_b, int before_w);
  RecomputeOption Option(Part part, const LayerRecompute& what);

 private:
  const LayerProfile& ProfileOf(const LayerRecompute& what);
  std::vector<LayerRecompute> Candidates(Part part, int before_b, int before_w);

  Deck deck_;
  std::map<LayerRecompute, LayerProfile> profiles_;
};

}  // namespace espalier
