// GEMMs in vector registers, at any instruction level.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// c = a b, plus a bias or plus the old c. a, b and c are f32, or a and b bf16 and c f32 or bf16; the bias is of c's
/// type; only f32 accumulates. bf16 is multiplied in pairs if the level supports it, otherwise widened to fp32. Sums
/// are fp32 and rounded once. An element's bits depend only on its row of a, its column of b, the length of both and
/// the addend, not on the other sizes or the number of threads.
void PanelGemm(const MatmulArgs& args);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
