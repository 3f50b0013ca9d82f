// recompute.mode = "auto": computes again only as much as memory needs; offload.activations = "auto": moves only as
// much to the host. For each pipeline stage it chooses what each layer computes again and whether what it keeps waits
// on the host, such that the exact peak fits a budget and the time added is smallest. Pure and deterministic: a
// function of deck, ranks, device and budget. The choice is a deck that states it by hand.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/deck/recompute.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// The treatment of the activations of a layer.
struct LayerChoice {
  LayerRecompute what = {};
  bool offload = false;  ///< what forward keeps for backward waits on the host
  auto operator<=>(const LayerChoice&) const = default;
};
/// "none", "full", "norm+activation+offload", "offload".
std::string ToString(const LayerChoice& choice);

/// The choice for a pipeline stage.
struct StageRecomputeChoice {
  std::vector<std::pair<LayerChoice, std::vector<int>>> layers;  ///< layers from 0, by what becomes of them
  int64_t peak_without = 0;  ///< peak of the stage's largest rank if nothing is computed again
  int64_t peak_bytes = 0;    ///< the same with the choice
  /// Work of a microbatch that recomputation adds, and time in which it waits for copies, relative to the stage's work.
  double added = 0;
};

struct RecomputeChoice {
  Deck deck;  ///< the deck, with the choice as recompute.mode, recompute.layers and offload.layers
  int64_t budget = 0;
  bool fits = false;  ///< false: not even most of it fits; the choice is that
  std::vector<StageRecomputeChoice> stages;
  int compilations = 0;  ///< of all layers, to know peaks exactly
};

/// Chooses for a deck with recompute.mode or offload.activations = "auto"; other keys are closed. Peaks are those of
/// training with the largest and the smallest batch. Layers are weighed by `times`, else by deck.times or rough times.
/// Throws as Compile.
RecomputeChoice ChooseRecompute(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads = 0,
                                std::shared_ptr<const OpTimes> times = nullptr);

/// For recompute.mode = "auto": the choice of ChooseRecompute, and if it fits, each fixed mode that does. Which is
/// fastest is left to a simulation.
std::vector<RecomputeChoice> RecomputeCandidates(const Deck& deck, int ranks, DeviceKind device, int64_t budget,
                                                 int threads = 0);

/// "full: 0-3; norm+offload: 4-9; none: 10-15": the layers of a stage.
std::string ToString(const StageRecomputeChoice& stage);

}  // namespace espalier
