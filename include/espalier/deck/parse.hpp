// Text -> checked Deck. All errors of a deck, its includes and the command line are reported together.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// A deck file and its key=value arguments, including options that set a key.
struct DeckArguments {
  std::string deck;
  std::vector<std::string> overrides;
};

struct LoadedDeck {
  Deck deck;
  /// Where each key's value comes from, by full name: "inputs/llama/tiny.toml:12", "command line", "default" or
  /// "from model.heads".
  std::map<std::string, std::string, std::less<>> origins;
  std::vector<std::string> repeated;  ///< a line for each override that a later one of its key replaces
};

/// The names of keys that a deck may have.
enum class KeyNames : uint8_t {
  kOfThisVersion,
  kOfAnyVersion,  ///< also those of earlier versions: an effective deck that a run wrote
};

/// The maximum size of a deck file, and of the effective deck in a checkpoint.
inline constexpr int64_t kMaxDeckBytes = 1 << 20;

/// Reads a deck file with its includes, then `overrides` ("key=value" each). Nothing else decides what a run does: the
/// deck of a checkpoint is only compared (compare.hpp). Relative paths in data.* become absolute: a path in a deck is
/// relative to the deck's folder, a path on the command line to the working directory. Throws UserError (kDeck) with
/// all errors, each "place: key = value: what is wrong (what is allowed)".
LoadedDeck LoadDeck(const std::string& path, const std::vector<std::string>& overrides = {},
                    KeyNames names = KeyNames::kOfThisVersion);

/// The same from text, without includes. `name` becomes the deck's name and its label in messages.
LoadedDeck ParseDeck(std::string_view text, const std::string& name, const std::vector<std::string>& overrides = {},
                     KeyNames names = KeyNames::kOfThisVersion);

/// ResolveMesh of the deck, with places in the messages.
Mesh ResolveMesh(const LoadedDeck& loaded, int ranks);

/// One line (place, value, reason) for each setting that differs from its default but has no effect together with the
/// others, and one for each override that a later one replaces.
std::vector<std::string> SettingsWithoutEffect(const LoadedDeck& loaded);

/// The smallest number of ranks that the degrees allow: their product, with what ep needs, or 1, for dp_shard = -1.
int SmallestRanks(const Deck& deck);

}  // namespace espalier
