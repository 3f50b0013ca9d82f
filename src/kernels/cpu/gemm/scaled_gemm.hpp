// GEMMs of fp8 operands with scales, computed as bf16 GEMMs: bf16 represents every fp8 value times a power of two
// exactly.
#pragma once

#include "kernels/arguments.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Codes [rows,depth] times their scales, one for all or one per row.
struct ScaledRows {
  Array x;
  const float* scales;
  bool per_row;
  int64_t rows, depth;
};
/// Widens them to bf16, exactly.
void Widen(const ScaledRows& scaled, Bf16* to);

/// The same GEMM with both operands widened to bf16, in scratch memory that is valid until the thread's next call.
MatmulArgs WidenScaled(const MatmulArgs& scaled);

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
