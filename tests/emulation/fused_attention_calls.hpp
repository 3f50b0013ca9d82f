// How tests question the emulated cuDNN.
#pragma once

#include <cstdint>

namespace espalier::emulation {

/// Calls of its attention so far, forward and backward.
int64_t FusedAttentionCalls();

}  // namespace espalier::emulation
