// A vector added to every row, and its gradient, the sum over rows.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void AddBias(const AddBiasArgs& a) {
  for (int64_t i = 0; i < a.rows * a.width; ++i) Set(a.y, i, Get(a.x, i) + Get(a.bias, i % a.width));
}

void BiasGrad(const BiasGradArgs& a) {
  for (int64_t c = 0; c < a.width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < a.rows; ++r) sum += Get(a.dy, r * a.width + c);
    Put(a.dbias, c, sum, a.accumulate);
  }
}

}  // namespace espalier::reference
