// The layers' options to compute again, or to move to the host: the memory that a layer keeps then, and its work.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "espalier/tune/recompute.hpp"
#include "tune/profile.hpp"

namespace espalier {

/// Bytes and times are those of a microbatch.
struct RecomputeOption {
  LayerChoice choice;
  double kept = 0;         ///< bytes from F to B
  double kept_for_w = 0;   ///< bytes from F or B to W
  double extra = 0;        ///< most bytes that backward makes at once, beyond what was kept
  double work = 0;         ///< time, forward and backward
  double forward = 0;      ///< of that, forward
  double staged = 0;       ///< bytes that come back for backward
  double out = 0, in = 0;  ///< time of copies to and from the host
};

/// Profiles options of every kind of layer, each once.
class RecomputeOptions {
 public:
  /// `deck` with known dp_shard, for so many ranks. If its offload.activations is "auto", layers may wait on the host;
  /// if recompute.mode is not, they compute again what the deck says.
  RecomputeOptions(const Deck& deck, int ranks);

  /// The options of a layer, nothing first: the modes, and ops that are added one after the other, those first that
  /// save most per work by themselves. Each again with what is kept on the host, if the layer `may_leave`. Or `fixed`
  /// in place of these.
  std::vector<RecomputeOption> Of(Part part, const std::optional<LayerRecompute>& fixed, bool may_leave);
  RecomputeOption Option(Part part, const LayerChoice& choice);
  /// Time of a part's kernels in a microbatch if nothing is computed again.
  double KernelWork(Part part) { return ProfileOf({}).kernel_work[part]; }

 private:
  const LayerProfile& ProfileOf(const LayerRecompute& what);
  std::vector<LayerRecompute> Candidates(Part part);

  Deck deck_;
  const int ranks_;
  std::map<LayerRecompute, LayerProfile> profiles_;
  std::map<Part, std::vector<LayerRecompute>> candidates_;
};

}  // namespace espalier
