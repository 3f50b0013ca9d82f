// Rank 0 proves that the programs of all ranks fit together, beside the rest of the start.
#pragma once

#include <future>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

class WorldCheck {
 public:
  /// Begins on rank 0, on a thread of its own.
  WorldCheck(const Deck& deck, World& world);
  /// Waits for the end of the check. Throws UserError (kFault) on every rank if the programs do not fit together.
  /// Returns how long it took, in milliseconds, on rank 0; 0 elsewhere. Collective.
  double Await();

 private:
  World& world_;
  std::future<double> took_ms_;
};

}  // namespace espalier
