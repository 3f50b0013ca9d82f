// The deck of a checkpoint, for its forward alone.
#pragma once

#include <string>

#include "espalier/deck/deck.hpp"
#include "espalier/train/evaluate_files.hpp"

namespace espalier {

/// Every rank computes its own rows with the whole model, unless the overrides set degrees: then the remaining ranks
/// shard the parameters too. Throws UserError: kDeck for the overrides, kData for the checkpoint `dir`.
Deck EvaluationDeck(const std::string& dir, const EvaluateOptions& options, int ranks);

}  // namespace espalier
