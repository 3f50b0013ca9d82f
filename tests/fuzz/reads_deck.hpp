// Shared by the targets that end in a deck: any input is refused with its errors, or gives a deck whose effective deck
// gives the same deck again.
#pragma once

#include "espalier/deck/print.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {

/// `read` makes a Deck from an input of `bytes` bytes. Tables of the TOML library and messages take a few hundred bytes
/// per byte of text.
template <typename Read>
void TryDeck(size_t bytes, const Read& read) {
  std::string effective;
  const bool refused = Within((int64_t{1} << 20) + 1024 * static_cast<int64_t>(bytes), [&] {
    Deck deck;
    if (IsRefused(ExitStatus::kDeck, [&] { deck = read(); })) return true;
    effective = EffectiveDeck(deck);
    return false;
  });
  if (refused) return;
  ++tally.accepted;
  const bool lost = IsRefused(ExitStatus::kDeck, [&] {
    Require(EffectiveDeck(ParseDeck(effective, "fuzz").deck) == effective, "the effective deck reads as another one");
  });
  Require(!lost, "the effective deck is refused");
}

}  // namespace espalier::fuzz
