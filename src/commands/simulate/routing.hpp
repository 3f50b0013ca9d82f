// --routing: how many tokens each expert receives.
#pragma once

#include <string>

#include "espalier/costs/routing.hpp"

namespace espalier {

/// "balanced" or "", "skew=X" (SkewedRouting), or the folder of a run, whose last step with `experts_loads` counts.
/// Throws UserError: kDeck if the argument has no meaning for the deck, kData if the run has no such loads.
Routing ReadRouting(const std::string& argument, const Deck& deck, int64_t seed);

/// The effect of a routing on a deck: the fullest rank of each layer.
struct FullestRanks {
  double mean = 1, most = 1;  ///< rows relative to balanced routing, over layers
  double beyond = 0;          ///< share of layers in which they exceed experts.buffer, so that a further pass has rows
};
FullestRanks FullestRanksOf(const Routing& routing, const Deck& deck);

/// One line for people; "" if the routing has no effect on the deck because it has no experts.
std::string RoutingText(const Routing& routing, const Deck& deck);

}  // namespace espalier
