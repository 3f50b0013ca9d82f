// GEMMs of activations and weights.
#include "kernels/fp8.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// Element i of an operand; an fp8 element is multiplied by the scale of the row or column `line`.
double Element(const Array& x, const float* scales, const Gemm& gemm, int64_t i, int64_t line) {
  if (gemm.scales == Scales::kNone) return Get(x, i);
  const double scale = scales[gemm.scales == Scales::kRow ? line : 0];
  return FromFp8(x.dtype, x.As<uint8_t>()[i]) * scale;
}

}  // namespace

void Matmul(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < s.k; ++p)
        sum += Element(a.a, a.a_scales, a.gemm, i * s.a_row + p * s.a_column, i) *
               Element(a.b, a.b_scales, a.gemm, p * s.b_row + j * s.b_column, j);
      if (a.bias) sum += Get(a.bias, j);
      Put(a.c, i * s.n + j, sum, a.gemm.accumulate);
    }
  }
}

}  // namespace espalier::reference
