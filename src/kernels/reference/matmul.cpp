// GEMMs of activations and weights.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Matmul(const MatmulArgs& a) {
  const GemmShape& s = a.gemm.shape;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < s.k; ++p)
        sum += Get(a.a, i * s.a_row + p * s.a_column) * Get(a.b, p * s.b_row + j * s.b_column);
      if (a.bias) sum += Get(a.bias, j);
      Put(a.c, i * s.n + j, sum, a.gemm.accumulate);
    }
  }
}

}  // namespace espalier::reference
