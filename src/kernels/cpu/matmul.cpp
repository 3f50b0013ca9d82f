// GEMMs of activations and weights: bf16 uses AMX tiles if the processor has them, otherwise vector registers.
#include <cstring>

#include "kernels/cpu/gemm/panel_gemm.hpp"
#include "kernels/cpu/gemm/scaled_gemm.hpp"
#include "kernels/cpu/gemm/tile_gemm.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/level.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// A GEMM whose contracted dim is empty: the result is 0, the old c, or the bias.
void MatmulOfDepth0(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  if (!a.gemm.accumulate) std::memset(a.c.data, 0, static_cast<size_t>(s.m * s.n * SizeOf(a.c.dtype)));
  if (a.bias) AddBias({.x = a.c, .bias = a.bias, .y = a.c, .rows = s.m, .width = s.n});
}

}  // namespace

// bf16 and fp8 GEMMs accumulate in fp32. A bias is added before the sums are rounded.
void Matmul(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  if (s.blocks != 1) {
    for (int64_t i = 0; i < s.blocks; ++i) Matmul(a.Block(i));
    return;
  }
  if (s.m * s.n == 0) return;
  if (s.k == 0) return MatmulOfDepth0(a);
  if (a.gemm.scales != Scales::kNone) return Matmul(WidenScaled(a));
  if (a.a.dtype == Dtype::kBf16 && UsesAmx())
    return TileGemm(s, a.a.As<Bf16>(), a.b.As<Bf16>(), a.c, a.gemm.accumulate, a.bias.As<Bf16>());
  PanelGemm(a);
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
