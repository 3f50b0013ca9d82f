// Matmuls of rows by the weights of their experts: a GEMM for each expert that has rows. The bits of an element of a
// GEMM do not depend on how many rows there are.
#include <cstring>

#include "kernels/cpu/runtime/kernels.hpp"

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

}  // namespace

void GroupedMatmul(const GroupedMatmulArgs& a) {
  const int32_t *row = a.group.expert_of_row, *end = row + a.group.rows;
  for (int64_t e = 0; e < a.group.experts; ++e) {
    const int32_t* next = std::upper_bound(row, end, static_cast<int32_t>(e));
    if (next > row || a.product == GroupedProduct::kWeightGradient)
      Matmul(MatmulOf(a, e, row - a.group.expert_of_row, next - row));
    row = next;
  }
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
