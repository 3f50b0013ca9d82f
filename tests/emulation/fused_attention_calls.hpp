// How tests question the emulated cuDNN.
#pragma once

#include <cstdint>

namespace espalier::emulation {

/// Number of executed plans so far, forward and backward.
int64_t FusedAttentionCalls();

}  // namespace espalier::emulation
