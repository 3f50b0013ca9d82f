// GELU, tanh form (Hendrycks and Gimpel 2016).
#include <numbers>

#include "access.hpp"

namespace espalier::reference {
namespace {

const double kScale = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

}  // namespace

// x -> x / 2 (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
void Gelu(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) {
    const double x = Get(call.inputs[0], i);
    Set(call.outputs[0], i, x / 2 * (1 + std::tanh(kScale * (x + kCubic * x * x * x))));
  }
}

// x, dy -> dx = dy (1/2 (1 + tanh(u)) + x / 2 (1 - tanh(u)^2) du/dx)
void GeluGrad(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) {
    const double x = Get(call.inputs[0], i), dy = Get(call.inputs[1], i);
    const double t = std::tanh(kScale * (x + kCubic * x * x * x)), slope = kScale * (1 + 3 * kCubic * x * x);
    Set(call.outputs[0], i, dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope));
  }
}

}  // namespace espalier::reference
