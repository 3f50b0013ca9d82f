// The SwiGLU gate of rows with weights. All lanes of an element's inputs are read before any of its outputs is written.
#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

Floats SigmoidOf(Floats x) { return 1.0f / (1.0f + Exp(-x)); }

}  // namespace

void WeightedSwiglu(const WeightedSwigluArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T *gate = a.gate.As<T>(), *up = a.up.As<T>();
    T* y = a.y.As<T>();
    ForRows(FilledRows(a.group), a.width, [=](int64_t r) {
      ForLanes(r * a.width, (r + 1) * a.width, [&](int64_t i, auto lanes) {
        const Floats g = a.rule.Gate(Load(gate + i, lanes)), u = a.rule.Up(Load(up + i, lanes));
        Store(y + i, a.weights[r] * SwigluOf(g, u, SigmoidOf(a.rule.alpha * g)), lanes);
      });
    });
  });
}

void WeightedSwigluGrad(const WeightedSwigluGradArgs& a) {
  ForElementType(a.dgate.dtype, [&]<typename T>(T) {
    const T *gate = a.gate.As<T>(), *up = a.up.As<T>(), *adjoint = a.dy.As<T>();
    T *dgate = a.dgate.As<T>(), *dup = a.dup.As<T>();
    ForRows(FilledRows(a.group), a.width, [=](int64_t r) {
      Sums sums;
      ForSums(0, a.width, [&](int64_t part, int64_t c, auto lanes) {
        const int64_t i = r * a.width + c;
        const Floats g = Load(gate + i, lanes), u = Load(up + i, lanes), dy = Load(adjoint + i, lanes);
        const Floats inner = a.rule.Gate(g), s = SigmoidOf(a.rule.alpha * inner);
        sums.part[part] += KeepFirst(dy * SwigluOf(inner, a.rule.Up(u), s), lanes);
        const GateAndUp<Floats> gradient = a.rule.Gradient(g, u, a.weights[r] * dy, s);
        Store(dgate + i, gradient.gate, lanes);
        Store(dup + i, gradient.up, lanes);
      });
      a.dweights[r] = Sum(sums);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
