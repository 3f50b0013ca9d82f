// Addition, the SwiGLU gate, casts, sums over microbatches.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Add(const AddArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    double sum = 0;
    for (const void* term : a.terms) sum += Get({const_cast<void*>(term), a.y.dtype}, i);
    Set(a.y, i, sum);
  }
}

void Swiglu(const SwigluArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double g = Get(a.gate, i);
    Set(a.y, i, g / (1 + std::exp(-g)) * Get(a.up, i));
  }
}

// With s = sigmoid(g): dg = dy u s (1 + g (1 - s)), du = dy g s.
void SwigluGrad(const SwigluGradArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double g = Get(a.gate, i), u = Get(a.up, i), dy = Get(a.dy, i);
    const double s = 1 / (1 + std::exp(-g));
    Set(a.dgate, i, dy * u * s * (1 + g * (1 - s)));
    Set(a.dup, i, dy * g * s);
  }
}

void Accumulate(const AccumulateArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) Put(a.y, i, a.x[i], a.accumulate);
}

void Cast(const CastArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) Set(a.y, i, Get(a.x, i));
}

}  // namespace espalier::reference
