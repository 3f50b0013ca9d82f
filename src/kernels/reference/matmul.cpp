// GEMMs of activations and weights.
#include <vector>

#include "kernels/fp8.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// The scale of contracted element p of the row or column `line`.
double ScaleOf(const Array& scales, const Gemm& gemm, int64_t line, int64_t p) {
  if (gemm.scales == Scales::kMx)
    return FromE8M0(scales.As<uint8_t>()[BlockScaleAt(line, p / kScaleBlock, gemm.shape.k)]);
  return scales.As<float>()[gemm.scales == Scales::kRow ? line : 0];
}

/// Element i of an operand, which is contracted element p of the row or column `line`; of fp8 times its scale.
double Element(const Array& x, const Array& scales, const Gemm& gemm, int64_t i, int64_t line, int64_t p) {
  if (gemm.scales == Scales::kNone) return Get(x, i);
  return FromFp8(x.dtype, x.As<uint8_t>()[i]) * ScaleOf(scales, gemm, line, p);
}

}  // namespace

void Matmul(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  if (s.blocks != 1) {
    for (int64_t i = 0; i < s.blocks; ++i) Matmul(a.Block(i));
    return;
  }
  std::vector<double> b(static_cast<size_t>(s.k * s.n)), sums(static_cast<size_t>(s.n));
  for (int64_t p = 0; p < s.k; ++p)
    for (int64_t j = 0; j < s.n; ++j)
      b[static_cast<size_t>(p * s.n + j)] = Element(a.b, a.b_scales, a.gemm, p * s.b_row + j * s.b_column, j, p);
  for (int64_t i = 0; i < s.m; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t p = 0; p < s.k; ++p) {
      const double x = Element(a.a, a.a_scales, a.gemm, i * s.a_row + p * s.a_column, i, p);
      for (int64_t j = 0; j < s.n; ++j) sums[static_cast<size_t>(j)] += x * b[static_cast<size_t>(p * s.n + j)];
    }
    for (int64_t j = 0; j < s.n; ++j) {
      const double bias = a.bias ? Get(a.bias, j) : 0;
      Put(a.c, i * s.n + j, sums[static_cast<size_t>(j)] + bias, a.gemm.accumulate);
    }
  }
}

}  // namespace espalier::reference
