// Products of activations and weights, lettered by `spec`.
#include "access.hpp"

namespace espalier::reference {

void Matmul(const KernelCall& call) {
  const ProductShape p = ProductOf(call).shape;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        sum += Get(call.inputs[0], i * p.a_row + l * p.a_column) * Get(call.inputs[1], l * p.b_row + j * p.b_column);
      }
      if (call.inputs.size() > 2) sum += Get(call.inputs[2], j);
      Put(call, 0, i * p.n + j, sum);
    }
  }
}

}  // namespace espalier::reference
