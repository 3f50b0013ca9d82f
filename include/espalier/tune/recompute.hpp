// recompute.mode = "auto": computes again only as much as memory needs. For each pipeline stage it chooses what each
// layer computes again, such that the exact peak fits a budget and the time added is smallest. Pure and deterministic:
// a function of deck, ranks, device and budget. The choice is a deck that states it by hand.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/deck/recompute.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// The choice for a pipeline stage.
struct StageRecomputeChoice {
  std::vector<std::pair<LayerRecompute, std::vector<int>>> layers;  ///< layers from 0, by what they compute again
  int64_t peak_without = 0;  ///< peak of the stage's largest rank if nothing is computed again
  int64_t peak_bytes = 0;    ///< the same with the choice
  double added = 0;          ///< work of a microbatch that recomputation adds, relative to the stage's work without it
};

struct RecomputeChoice {
  Deck deck;  ///< the deck, with the choice as recompute.mode and recompute.layers
  int64_t budget = 0;
  bool fits = false;  ///< false: not even full recompute fits; the choice is that
  std::vector<StageRecomputeChoice> stages;
  int compilations = 0;  ///< of all layers, to know peaks exactly
};

/// Chooses for a deck with recompute.mode = "auto". Peaks are those of training with the largest and the smallest
/// batch. Throws as Compile.
RecomputeChoice ChooseRecompute(const Deck& deck, int ranks, DeviceKind device, int64_t budget, int threads = 0);

/// "full: 0-3; norm+activation: 4-9; none: 10-15": the layers of a stage.
std::string ToString(const StageRecomputeChoice& stage);

}  // namespace espalier
