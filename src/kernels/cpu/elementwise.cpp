// Addition, the SwiGLU gate, casts, sums over microbatches. All lanes of an element's inputs are read before any of its
// outputs is written, so outputs may be inputs.
#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

Floats Sigmoid(Floats x) { return 1.0f / (1.0f + Exp(-x)); }

/// Calls f(i, gate, lanes) for all elements of a dense tensor, with their place in rows of gates.
template <typename F>
void ForGates(const GateRows& shape, F f) {
  if (shape.rows == 1) return ForElements(shape.width, [&](int64_t i, auto lanes) { f(i, i, lanes); });
  ForRows(shape.rows, shape.width, [&](int64_t r) {
    ForLanes(0, shape.width, [&](int64_t c, auto lanes) { f(r * shape.width + c, r * shape.stride + c, lanes); });
  });
}

}  // namespace

// Sums are fp32.
void Add(const AddArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    ForElements(a.n, [&](int64_t i, auto lanes) {
      Floats sum = Load(static_cast<const T*>(a.terms[0]) + i, lanes);
      for (size_t t = 1; t < a.terms.size(); ++t) sum += Load(static_cast<const T*>(a.terms[t]) + i, lanes);
      Store(a.y.As<T>() + i, sum, lanes);
    });
  });
}

void Accumulate(const AccumulateArgs& a) {
  ForElements(a.n, [=](int64_t i, auto lanes) {
    const Floats term = Load(a.x + i, lanes);
    Store(a.y + i, a.accumulate ? Load(a.y + i, lanes) + term : term, lanes);
  });
}

void Swiglu(const SwigluArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T *gate = a.gate.As<T>(), *up = a.up.As<T>();
    T* y = a.y.As<T>();
    ForGates(a.shape, [=](int64_t i, int64_t at, auto lanes) {
      const Floats g = Load(gate + at, lanes);
      Store(y + i, SwigluOf(g, Load(up + at, lanes), Sigmoid(g)), lanes);
    });
  });
}

void SwigluGrad(const SwigluGradArgs& a) {
  ForElementType(a.dgate.dtype, [&]<typename T>(T) {
    const T *gate = a.gate.As<T>(), *up = a.up.As<T>(), *adjoint = a.dy.As<T>();
    T *dgate = a.dgate.As<T>(), *dup = a.dup.As<T>();
    ForGates(a.shape, [=](int64_t i, int64_t at, auto lanes) {
      const Floats g = Load(gate + at, lanes), u = Load(up + at, lanes), dy = Load(adjoint + i, lanes);
      const GateAndUp<Floats> gradient = SwigluGradOf(g, u, dy, Sigmoid(g));
      Store(dgate + at, gradient.gate, lanes);
      Store(dup + at, gradient.up, lanes);
    });
  });
}

void Cast(const CastArgs& a) {
  ForElementType(a.x.dtype, [&]<typename From>(From) {
    ForElementType(a.y.dtype, [&]<typename To>(To) {
      const From* x = a.x.As<From>();
      To* y = a.y.As<To>();
      ForElements(a.n, [=](int64_t i, auto lanes) { Store(y + i, Load(x + i, lanes), lanes); });
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
