// Whether the programs of a run fit into the memory of their nodes, and which settings would.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"

namespace espalier {

/// Bytes of a rank's arena: the largest of its programs.
int64_t ArenaBytes(const Deck& deck, int ranks, int rank);

/// "recompute.mode = \"full\" (1.2 GB per rank)", ...: changes of the deck under which the rank needs `budget` bytes at
/// most, the nearest first; a few, and only what a few seconds of compiling find.
std::vector<std::string> SettingsThatFit(const Deck& deck, int ranks, int rank, int64_t budget);

/// Throws UserError (kDoesNotFit), the same on every rank, if ranks want more for their arenas than what they share has
/// free: which rank, on which node, how much, of what, and settings that fit. Nothing is taken before. Collective.
void CheckFit(const Deck& deck, World& world, const Device& device, int64_t arena_bytes);

}  // namespace espalier
