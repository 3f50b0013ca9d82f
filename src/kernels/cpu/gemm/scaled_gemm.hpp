// GEMMs of fp8 operands with scales, as GEMMs of bf16: no processor's bf16 loses anything of an fp8 value times a power
// of two.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// The same GEMM with both operands widened to bf16, in scratch memory that is valid until the thread's next call.
MatmulArgs WidenScaled(const MatmulArgs& scaled);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
