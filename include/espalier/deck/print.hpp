// Deck -> text: the effective deck, and the reference of all keys.
#pragma once

#include <string>
#include <string_view>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// Every key with its value as TOML, in ASCII; ParseDeck of it gives an equal deck.
std::string EffectiveDeck(const Deck& deck);

/// The same with the origin of each value as a comment.
std::string EffectiveDeck(const LoadedDeck& loaded);

/// A string as TOML, in quotes and ASCII; for overrides made from command-line flags.
std::string TomlString(std::string_view text);

/// Help on a section ("model"), one key ("model.heads") or "all" sections. Throws UserError (kDeck) with the nearest
/// name if `topic` is unknown.
std::string HelpText(std::string_view topic);

/// One line per section, for the general help.
std::string SectionList();

/// doc/deck.md.
std::string DeckReference();

}  // namespace espalier
