// GEMMs of bf16 matrices with AMX tiles.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// c (+)= a b, a and b bf16, c f32 or bf16; only f32 accumulates. With a bias (not nullptr; c bf16 and overwritten): c
/// = a b + bias. Sums are fp32 and rounded once. An element's bits depend only on its row of a, its column of b and the
/// length of both, not on the other sizes or the number of threads. Requires UsesAmx().
void TileGemm(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate,
              const Bf16* bias = nullptr);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
