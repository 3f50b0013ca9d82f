// GELU, tanh form (Hendrycks and Gimpel 2016). With 2 u the exponent, (1 + tanh(u)) / 2 is sigmoid(2 u); t = exp(-|2
// u|) gives it and its slope t / (1 + t)^2 without cancellation. All lanes of an element's inputs are read before its
// output is written.
#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

constexpr float kTwoScale = 1.59576912160573071f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
/// Beyond this exp(-|2 u|) is 0 in fp32; the cube stays finite within it.
constexpr float kFar = 12.0f;

struct Gate {
  Floats sigmoid, slope;  ///< sigmoid of 2 u, and its derivative by x
};

Gate GateOf(Floats x) {
  const Floats low = x < -kFar ? Broadcast(-kFar) : x;
  const Floats z = low > kFar ? Broadcast(kFar) : low;
  const Floats squared = z * z, exponent = kTwoScale * z * (1.0f + kCubic * squared);
  const Floats t = Exp(exponent < 0.0f ? exponent : -exponent), inverse = 1.0f / (1.0f + t);
  return {exponent < 0.0f ? t * inverse : inverse,
          t * inverse * inverse * kTwoScale * (1.0f + 3.0f * kCubic * squared)};
}

}  // namespace

// x sigmoid(2 u)
void Gelu(const GeluArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const T* in = a.x.As<T>();
    T* y = a.y.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      const Floats x = Load(in + i, lanes);
      Store(y + i, x * GateOf(x).sigmoid, lanes);
    });
  });
}

// dx = dy (sigmoid(2 u) + x d sigmoid(2 u) / dx)
void GeluGrad(const GeluGradArgs& a) {
  ForElementType(a.dx.dtype, [&]<typename T>(T) {
    const T *in = a.x.As<T>(), *dy = a.dy.As<T>();
    T* dx = a.dx.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      const Floats x = Load(in + i, lanes);
      const Gate gate = GateOf(x);
      Store(dx + i, Load(dy + i, lanes) * (gate.sigmoid + x * gate.slope), lanes);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
