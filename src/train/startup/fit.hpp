// Checks whether the programs of a run fit into the memory of their nodes, and if not, finds settings that do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Bytes of the arenas that a program needs, and the larger of two.
BySpace<int64_t> ArenasOf(const Program& program);
BySpace<int64_t> Larger(const BySpace<int64_t>& a, const BySpace<int64_t>& b);

/// Bytes of a rank's arenas: the largest of its programs.
BySpace<int64_t> ArenaBytes(const Deck& deck, int ranks, int rank);

/// The memory that a rank takes after its arena, in the same memory.
int64_t BytesToCome(const Deck& deck, const Device& device);

/// Changes of the deck with which the rank needs at most `budget` bytes, the cheapest first: "recompute.mode = \"auto\"
/// (1.2 GB per rank)". At most a few, found within a few seconds of compiling.
std::vector<std::string> SettingsThatFit(const Deck& deck, int ranks, int rank, int64_t budget);

/// Whether CheckFit would accept these arenas. Collective.
bool Fits(const Deck& deck, World& world, const Device& device, const BySpace<int64_t>& arena_bytes);

/// Throws AgreedError (kDoesNotFit) if ranks need more memory for their arenas than their node or device has free, or
/// offload.device_bytes allows: the message has rank, node, bytes, and settings that fit. Must be called before any
/// arena is allocated. Collective.
void CheckFit(const Deck& deck, World& world, const Device& device, const BySpace<int64_t>& arena_bytes);

}  // namespace espalier
