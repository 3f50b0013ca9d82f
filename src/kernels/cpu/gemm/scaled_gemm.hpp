// GEMMs of fp8 operands with scales, computed as bf16 GEMMs: bf16 represents every fp8 value times a power of two
// exactly.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// The same GEMM with both operands widened to bf16, in scratch memory that is valid until the thread's next call.
MatmulArgs WidenScaled(const MatmulArgs& scaled);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
