// The deck of a checkpoint, for its forward alone.
#pragma once

#include <string>

#include "espalier/deck/deck.hpp"
#include "espalier/train/evaluate_files.hpp"

namespace espalier {

/// Every rank computes rows of its own with the whole model, unless the overrides say otherwise: then the ranks that
/// their degrees leave over share the parameters too. Throws UserError: kDeck for the overrides, kData for the
/// checkpoint `dir`.
Deck EvaluationDeck(const std::string& dir, const EvaluateOptions& options, int ranks);

}  // namespace espalier
