// bf16 GEMMs for processors without bf16 instructions.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu {

/// c (+)= a b, a and b bf16, c f32 or bf16; with a bias (not nullptr; c bf16 and overwritten): c = a b + bias. Operands
/// are widened to fp32 in blocks that stay in the last-level cache and multiplied at the fp32 rate; sums are fp32,
/// rounded once.
void WidenedGemm(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate,
                 const Bf16* bias = nullptr);

}  // namespace espalier::cpu
