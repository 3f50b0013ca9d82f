// Rank 0 proves that the programs of all ranks fit together, beside the rest of the start.
#pragma once

#include <future>
#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// What came of it.
struct WorldProof {
  double ms = 0;        ///< how long it took
  std::string why_not;  ///< why one process cannot prove this world; empty: proven
};

class WorldCheck {
 public:
  /// Begins on rank 0, on a thread of its own.
  WorldCheck(const Deck& deck, World& world);
  /// Waits for the end of the check. Throws UserError (kFault) on every rank if the programs do not fit together.
  /// Returns what came of it on rank 0, nothing elsewhere. Collective.
  WorldProof Await();

 private:
  World& world_;
  std::future<WorldProof> proof_;
};

}  // namespace espalier
