// What the ranks agree on between two steps.
#pragma once

#include "espalier/comm/world.hpp"

namespace espalier {

/// Wishes and states of a rank at the end of a step, then of all ranks: one small exchange carries every flag.
struct Boundary {
  bool save = false;    ///< a checkpoint of this step is wanted
  bool stop = false;    ///< the run is to end here, with a checkpoint
  bool saving = false;  ///< a save is in flight
  bool unread = false;  ///< the next step's batch could not be read
};

/// Every flag that some rank set, on every rank. Collective.
Boundary Agree(World& world, const Boundary& mine);

}  // namespace espalier
