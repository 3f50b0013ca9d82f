// Attention of one query per sequence over a cache: a step of sampling.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Attention for queries == 1. Reads each visible key and value once per head, which bounds the time: no blocks are
/// packed.
void AttentionOfOneQuery(const AttentionArgs& a);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
