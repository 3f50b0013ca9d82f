// Matmuls of rows by the weights of their experts.
#include "kernels/fp8.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

double Element(const Array& x, int64_t i) { return IsFp8(x.dtype) ? FromFp8(x.dtype, x.As<uint8_t>()[i]) : Get(x, i); }

/// The scale of a column of results of an expert; 1 if operands are not in fp8.
double ScaleOfWeight(const GroupedMatmulArgs& a, int64_t expert, int64_t column) {
  if (a.b_scales == nullptr) return 1;
  return a.b_scales[a.b_has_row_scales ? expert * a.out + column : expert];
}

/// c[r][j] = sum over p of a[r][p] w[expert of r](p, j).
void RowsByExpert(const GroupedMatmulArgs& a) {
  const bool forward = a.product == GroupedProduct::kForward;
  const int64_t n = forward ? a.out : a.in, k = forward ? a.in : a.out;
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t expert = a.group.expert_of_row[r], weight = expert * a.out * a.in;
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += Element(a.a, r * k + p) * Element(a.b, weight + (forward ? j * k + p : p * n + j));
      Set(a.c, r * n + j, sum * (a.a_scales == nullptr ? 1 : a.a_scales[r]) * ScaleOfWeight(a, expert, j));
    }
}

void GradientOfExperts(const GroupedMatmulArgs& a) {
  int64_t r = 0;
  for (int64_t e = 0; e < a.group.experts; ++e) {
    const int64_t begin = r;
    while (r < a.group.rows && a.group.expert_of_row[r] == e) ++r;
    for (int64_t i = 0; i < a.out; ++i)
      for (int64_t j = 0; j < a.in; ++j) {
        double sum = 0;
        for (int64_t row = begin; row < r; ++row) sum += Get(a.a, row * a.out + i) * Get(a.b, row * a.in + j);
        Put(a.c, (e * a.out + i) * a.in + j, sum, a.accumulate);
      }
  }
}

}  // namespace

void GroupedMatmul(const GroupedMatmulArgs& a) {
  a.product == GroupedProduct::kWeightGradient ? GradientOfExperts(a) : RowsByExpert(a);
}

}  // namespace espalier::reference
