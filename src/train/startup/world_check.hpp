// Rank 0 proves, in the background during the start, that the programs of all ranks fit together.
#pragma once

#include <future>
#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// The result.
struct WorldProof {
  double ms = 0;        ///< time that it took
  std::string why_not;  ///< why one process cannot prove this world; empty: proven
};

class WorldCheck {
 public:
  /// Starts the check of the programs for `device` on rank 0, in a thread.
  WorldCheck(const Deck& deck, DeviceKind device, World& world);
  /// Waits for the check. Throws AgreedError (kFault) if the programs do not fit together. Rank 0 has the result; other
  /// ranks get an empty one. Collective.
  WorldProof Await();

 private:
  World& world_;
  std::future<WorldProof> proof_;
};

}  // namespace espalier
