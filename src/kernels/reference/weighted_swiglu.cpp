// The SwiGLU gate of rows with weights.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void WeightedSwiglu(const WeightedSwigluArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r)
    for (int64_t i = r * a.width; i < (r + 1) * a.width; ++i) {
      const double g = Get(a.gate, i);
      Set(a.y, i, a.weights[r] * g / (1 + std::exp(-g)) * Get(a.up, i));
    }
}

void WeightedSwigluGrad(const WeightedSwigluGradArgs& a) {
  for (int64_t r = 0; r < a.group.rows && a.group.expert_of_row[r] != kNoExpert; ++r) {
    double sum = 0;
    for (int64_t i = r * a.width; i < (r + 1) * a.width; ++i) {
      const double g = Get(a.gate, i), u = Get(a.up, i), dy = Get(a.dy, i);
      const double s = 1 / (1 + std::exp(-g)), w = a.weights[r];
      sum += dy * g * s * u;
      Set(a.dgate, i, w * dy * u * s * (1 + g * (1 - s)));
      Set(a.dup, i, w * dy * g * s);
    }
    Set(a.dweights, r, sum);
  }
}

}  // namespace espalier::reference
