// The shares of [offload], in one table.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct OffloadShare {
  std::string_view name;  ///< of the key in [offload]
  double Deck::Offload::*share;
  double Of(const Deck& deck) const { return deck.offload.*share; }
};

/// Shares of states, then that of activations.
inline constexpr OffloadShare kOffloadShares[] = {{"optimizer", &Deck::Offload::optimizer},
                                                  {"parameters", &Deck::Offload::parameters},
                                                  {"gradients", &Deck::Offload::gradients},
                                                  {"activations", &Deck::Offload::activations}};
inline constexpr std::span<const OffloadShare> kOffloadedStates = std::span(kOffloadShares).first<3>();

inline void SetOffloadShares(Deck& deck, double share) {
  for (const OffloadShare& of : kOffloadShares) deck.offload.*of.share = share;
}

/// Whether one of these shares has the value.
inline bool AnyShareIs(const Deck& deck, double value, std::span<const OffloadShare> shares = kOffloadShares) {
  return std::ranges::any_of(shares, [&](const OffloadShare& share) { return share.Of(deck) == value; });
}
inline bool AllSharesAre(const Deck& deck, double value, std::span<const OffloadShare> shares = kOffloadShares) {
  return std::ranges::all_of(shares, [&](const OffloadShare& share) { return share.Of(deck) == value; });
}

}  // namespace espalier
