// How far the peak of a layout's programs is above the lower bound (memory_bound.hpp): messages under way, workspaces
// and holes. A smaller model in the same layout tells: of the last kind of layer, with twelve layers or one per chunk,
// and no more microbatches than keep the pipeline busy. Its bound is compared with the peak that the memory plan gives
// to its fullest stage.
#pragma once

#include <cstdint>

#include "tune/memory_bound.hpp"

namespace espalier {

/// Bytes of the peak beyond the bound; 0 if the deck names layers by their numbers, or the smaller model is not valid.
/// `profile` and `states` are those of the layout.
int64_t SurplusOf(const Deck& deck, const Layout& layout, int64_t microbatches, const LayerProfile& profile,
                  const ByPart<PartStates>& states);

}  // namespace espalier
