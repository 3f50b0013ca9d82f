// Chooses what a deck leaves open about memory, at the start of a run.
#pragma once

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// The deck whose programs the run compiles. With recompute.mode or keys of [offload] = "auto" rank 0 chooses and
/// reports it, so all ranks have the same. If recompute.budget is 0, it becomes the memory that every rank can have,
/// and is written into `deck`: with that the choice can be repeated. Collective.
Deck WithChosenMemory(Deck& deck, World& world, const Device& device);

}  // namespace espalier
