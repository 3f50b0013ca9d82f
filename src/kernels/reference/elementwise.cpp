// Addition, the SwiGLU gate, casts, sums over microbatches.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// Calls f(i, gate) for all elements of a dense tensor, with the place of the element in rows of gates.
template <typename F>
void ForGates(const GateRows& shape, F f) {
  for (int64_t r = 0; r < shape.rows; ++r)
    for (int64_t c = 0; c < shape.width; ++c) f(r * shape.width + c, r * shape.stride + c);
}

}  // namespace

void Add(const AddArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    double sum = 0;
    for (const void* term : a.terms) sum += Get({const_cast<void*>(term), a.y.dtype}, i);
    Set(a.y, i, sum);
  }
}

void Swiglu(const SwigluArgs& a) {
  ForGates(a.shape, [&](int64_t i, int64_t gate) {
    const double g = Get(a.gate, gate);
    Set(a.y, i, g / (1 + std::exp(-g)) * Get(a.up, gate));
  });
}

// With s = sigmoid(g): dg = dy u s (1 + g (1 - s)), du = dy g s.
void SwigluGrad(const SwigluGradArgs& a) {
  ForGates(a.shape, [&](int64_t i, int64_t gate) {
    const double g = Get(a.gate, gate), u = Get(a.up, gate), dy = Get(a.dy, i);
    const double s = 1 / (1 + std::exp(-g));
    Set(a.dgate, gate, dy * u * s * (1 + g * (1 - s)));
    Set(a.dup, gate, dy * g * s);
  });
}

void Accumulate(const AccumulateArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) Put(a.y, i, a.x[i], a.accumulate);
}

void Cast(const CastArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) Set(a.y, i, Get(a.x, i));
}

}  // namespace espalier::reference
