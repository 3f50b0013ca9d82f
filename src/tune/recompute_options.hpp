// The ways in which a layer may compute again: the memory that it keeps then, and its work.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "espalier/deck/recompute.hpp"
#include "tune/profile.hpp"

namespace espalier {

/// Bytes are those of a microbatch.
struct RecomputeOption {
  LayerRecompute what;
  double kept = 0;        ///< bytes from F to B
  double kept_for_w = 0;  ///< bytes from F or B to W
  double extra = 0;       ///< most bytes that backward makes at once, beyond what was kept
  double work = 0;        ///< rough time, forward and backward
};

/// Profiles options of every kind of layer, each once.
class RecomputeOptions {
 public:
  /// `deck` with known dp_shard.
  explicit RecomputeOptions(const Deck& deck);

  /// The options of a part, nothing first: the modes, and ops that are added one after the other, those first that save
  /// most per work by themselves.
  const std::vector<RecomputeOption>& Of(Part part);
  RecomputeOption Option(Part part, const LayerRecompute& what);
  /// Rough time of a part's kernels in a microbatch if nothing is computed again.
  double KernelWork(Part part) { return ProfileOf({}).kernel_work[part]; }

 private:
  const LayerProfile& ProfileOf(const LayerRecompute& what);
  std::vector<LayerRecompute> Candidates(Part part);

  Deck deck_;
  std::map<LayerRecompute, LayerProfile> profiles_;
  std::map<Part, std::vector<RecomputeOption>> options_;
};

}  // namespace espalier
