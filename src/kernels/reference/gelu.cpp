// GELU, tanh form (Hendrycks and Gimpel 2016).
#include <numbers>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

const double kScale = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

}  // namespace

void Gelu(const GeluArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double x = Get(a.x, i);
    Set(a.y, i, x / 2 * (1 + std::tanh(kScale * (x + kCubic * x * x * x))));
  }
}

// dx = dy (1/2 (1 + tanh(u)) + x / 2 (1 - tanh(u)^2) du/dx), u = sqrt(2 / pi) (x + 0.044715 x^3)
void GeluGrad(const GeluGradArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double x = Get(a.x, i), dy = Get(a.dy, i);
    const double t = std::tanh(kScale * (x + kCubic * x * x * x)), slope = kScale * (1 + 3 * kCubic * x * x);
    Set(a.dx, i, dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope));
  }
}

}  // namespace espalier::reference
