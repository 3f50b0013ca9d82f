// Compares the deck of a checkpoint with the deck of the run that continues from it. The run's deck decides.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// A key whose value differs from the checkpoint's. Values are TOML, in ASCII.
struct DeckDifference {
  std::string key;     ///< full name
  std::string before;  ///< in the checkpoint
  std::string now;     ///< in the deck
  std::string origin;  ///< origin of the new value, as in LoadedDeck::origins
  bool fixed;          ///< the weights belong to the old value: no run can continue with another
  bool computes;       ///< the same weights now give other outputs, so the proof cannot be compared

  /// "optimizer.lr = 0.003 (command line), 0.001 in the checkpoint"; long values are shortened.
  std::string Text() const;
};

/// Every key whose effective value differs, in the order of the schema. No key is left out, since each was part of the
/// run; but a value that a saved deck did not know yet (AwaitsData) is no difference.
std::vector<DeckDifference> Differences(const Deck& saved, const LoadedDeck& now);

}  // namespace espalier
