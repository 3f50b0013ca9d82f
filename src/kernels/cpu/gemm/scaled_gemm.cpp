#include "scaled_gemm.hpp"

#include <array>

#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/cpu/runtime/scratch.hpp"
#include "kernels/fp8.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

using Values = std::array<float, 256>;

Values ValuesOf(Dtype dtype) {
  Values values;
  for (size_t code = 0; code < values.size(); ++code) values[code] = FromFp8(dtype, static_cast<uint8_t>(code));
  return values;
}
const Values& FindValues(Dtype dtype) {
  static const Values e4m3 = ValuesOf(Dtype::kF8E4M3), e5m2 = ValuesOf(Dtype::kF8E5M2);
  return dtype == Dtype::kF8E4M3 ? e4m3 : e5m2;
}

}  // namespace

void Widen(const ScaledRows& scaled, Bf16* to) {
  const Values& values = FindValues(scaled.x.dtype);
  const uint8_t* codes = scaled.x.As<uint8_t>();
  const int64_t depth = scaled.depth;
  ParallelRanges(scaled.rows, RowGrain(depth), [=, &values](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float scale = scaled.scales[scaled.per_row ? r : 0];
      for (int64_t p = r * depth; p < (r + 1) * depth; ++p) to[p] = ToBf16(values[codes[p]] * scale);
    }
  });
}

namespace {

/// The same with a scale for each block of a row.
void WidenBlocks(const Array& x, const uint8_t* scales, int64_t rows, int64_t depth, Bf16* to) {
  const Values& values = FindValues(x.dtype);
  const uint8_t* codes = x.As<uint8_t>();
  ParallelRanges(rows, RowGrain(depth), [=, &values](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t first = 0; first < depth; first += kScaleBlock) {
        const float scale = FromE8M0(scales[BlockScaleAt(r, first / kScaleBlock, depth)]);
        for (int64_t p = r * depth + first; p < r * depth + first + kScaleBlock; ++p)
          to[p] = ToBf16(values[codes[p]] * scale);
      }
  });
}

/// An operand of a GEMM as `rows` rows of its contracted elements.
void WidenOperand(const Gemm& gemm, const Array& x, const Array& scales, int64_t rows, Bf16* to) {
  if (gemm.scales == Scales::kMx)
    WidenBlocks(x, scales.As<uint8_t>(), rows, gemm.shape.k, to);
  else
    Widen({x, scales.As<float>(), gemm.scales == Scales::kRow, rows, gemm.shape.k}, to);
}

}  // namespace

MatmulArgs WidenScaled(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  Bf16* wide = ScratchOf<Bf16>((s.m + s.n) * s.k, ScratchUse::kWidened);
  Bf16* wide_b = wide + s.m * s.k;
  WidenOperand(a.gemm, a.a, a.a_scales, s.m, wide);
  WidenOperand(a.gemm, a.b, a.b_scales, s.n, wide_b);
  MatmulArgs bf16 = a;
  bf16.a = {wide, Dtype::kBf16};
  bf16.b = {wide_b, Dtype::kBf16};
  bf16.gemm.input = Dtype::kBf16;
  bf16.gemm.scales = Scales::kNone;
  return bf16;
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
