// The deck inside a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/compare.hpp"

namespace espalier {

/// Parses `text`, the deck.toml of the checkpoint `dir`. Throws UserError (kData): "DIR/deck.toml:31: ...".
Deck SavedDeck(const std::string& dir, const std::string& text, const std::vector<std::string>& overrides = {});

/// Throws RefusedForGood naming the keys that differ if the checkpoint `dir` holds the weights of another model.
void RequireSameModel(const std::string& dir, const std::vector<DeckDifference>& differences);

}  // namespace espalier
