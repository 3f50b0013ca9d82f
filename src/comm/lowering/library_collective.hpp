// Lowers an instruction to one collective of a communication library, where the library has one that does the same. The
// exchanges of exchange.hpp send every box directly to each member that needs it. That is the least traffic where all
// members reach each other directly (NVSwitch). Between nodes with g GPUs each, an exchange sends the same box g times
// over the same wire; the rings and trees of the library send it once. So we have both.
#pragma once

#include <optional>

#include "comm/lowering/exchange.hpp"

namespace espalier {

/// The instruction as one collective over the channel, or nullopt if none fits: then it becomes an exchange. Shards
/// that are not contiguous and of equal size on all members are packed, padded and trimmed in the workspace, if the
/// planned workspaces of all members suffice. Only sums of f32 or bf16, added in the library's order. All members
/// decide in the same way.
std::optional<Exchange> LowerToLibraryCollective(const Program& program, const Coordinate& coordinate,
                                                 const CommInstruction& instruction);

}  // namespace espalier
