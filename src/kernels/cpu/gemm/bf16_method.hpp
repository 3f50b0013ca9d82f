// How bf16 GEMMs are computed on this processor.
#pragma once

namespace espalier::cpu {

/// True where bf16 GEMMs widen to fp32 first: the processor lacks AVX512-BF16 and AMX, or ESPALIER_BF16=widen is
/// set. Chosen at the first call.
bool WidensBf16();

/// True where bf16 GEMMs are AMX's, which the processor has, the system grants, and oneDNN has not been told to
/// leave alone.
bool UsesAmx();

/// True where this backend was compiled for AVX512-BF16 and uses its dot products.
inline bool HasBf16Dot() {
#ifdef __AVX512BF16__
  return !WidensBf16();
#else
  return false;
#endif
}

}  // namespace espalier::cpu
