// The flags on which ranks agree after each step.
#pragma once

#include "espalier/comm/world.hpp"

namespace espalier {

/// First the flags of one rank, then of all: one small exchange carries every flag.
struct StepFlags {
  bool save = false;    ///< a checkpoint of this step is requested
  bool stop = false;    ///< the run must stop here, with a checkpoint
  bool saving = false;  ///< a save is in flight
  bool unread = false;  ///< the next step's batch could not be read
};

/// Every flag that some rank has set, on every rank. Collective.
StepFlags CombineFlags(World& world, const StepFlags& own);

}  // namespace espalier
