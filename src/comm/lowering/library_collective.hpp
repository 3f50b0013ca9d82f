// Where a communication library's own collective does what an instruction wants. The exchanges of exchange.hpp send
// every piece straight to whoever wants it: the least traffic where all members reach each other directly (NVSwitch).
// Between nodes of g GPUs they send the same piece g times over the same wire, which the library's rings and trees send
// once: hence both.
#pragma once

#include <optional>

#include "comm/lowering/exchange.hpp"

namespace espalier {

/// The instruction as one collective over the channel, or nothing where none fits: then it is an exchange. What is not
/// one contiguous piece of equal size everywhere is packed, padded and trimmed in the workspace, if all members'
/// planned ones suffice. Sums of f32 or bf16 only, in the library's order. All members come to the same answer.
std::optional<Exchange> LowerNative(const Program& program, const Coordinate& coordinate,
                                    const CommInstruction& instruction);

}  // namespace espalier
