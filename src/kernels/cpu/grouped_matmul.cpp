// Matmuls of rows by the weights of their experts: a GEMM for each expert that has rows. The bits of an element of a
// GEMM do not depend on how many rows there are. Operands in fp8 are widened to bf16, one expert's at a time.
#include <cstring>

#include "kernels/cpu/gemm/scaled_gemm.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Rows [begin, begin + m) and the weight of expert e.
MatmulArgs MatmulOf(const GroupedMatmulArgs& a, int64_t e, int64_t begin, int64_t m) {
  const int64_t n = a.out, k = a.in, weight = e * n * k;
  const auto args = [&](const GemmShape& shape, Array x, Array y, Array z) {
    return MatmulArgs{{.shape = shape, .input = x.dtype, .output = z.dtype, .accumulate = a.accumulate}, x, y, {}, z};
  };
  switch (a.product) {
    case GroupedProduct::kForward:
      return args({m, n, k, k, 1, 1, k, n}, a.a.From(begin * k), a.b.From(weight), a.c.From(begin * n));
    case GroupedProduct::kInputGradient:
      return args({m, k, n, n, 1, k, 1, k}, a.a.From(begin * n), a.b.From(weight), a.c.From(begin * k));
    case GroupedProduct::kWeightGradient:
      break;
  }
  return args({n, k, m, 1, n, k, 1, k}, a.a.From(begin * n), a.b.From(begin * k), a.c.From(weight));
}

/// The same product of bf16 operands, which are in scratch memory until the thread's next call.
MatmulArgs WidenedMatmulOf(const GroupedMatmulArgs& a, int64_t e, int64_t begin, int64_t m) {
  MatmulArgs product = MatmulOf(a, e, begin, m);
  Bf16 *rows = ScratchOf<Bf16>((m + a.out) * a.in, ScratchUse::kWidened), *weight = rows + m * a.in;
  Widen({product.a, a.a_scales + begin, true, m, a.in}, rows);
  Widen({product.b, a.b_scales + (a.b_has_row_scales ? e * a.out : e), a.b_has_row_scales, a.out, a.in}, weight);
  product.a = {rows, Dtype::kBf16};
  product.b = {weight, Dtype::kBf16};
  product.gemm.input = Dtype::kBf16;
  return product;
}

}  // namespace

void GroupedMatmul(const GroupedMatmulArgs& a) {
  const int32_t *row = a.group.expert_of_row, *end = row + a.group.rows;
  for (int64_t e = 0; e < a.group.experts; ++e) {
    const int32_t* next = std::upper_bound(row, end, static_cast<int32_t>(e));
    if (next > row || a.product == GroupedProduct::kWeightGradient)
      Matmul((a.a_scales == nullptr ? MatmulOf : WidenedMatmulOf)(a, e, row - a.group.expert_of_row, next - row));
    row = next;
  }
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
