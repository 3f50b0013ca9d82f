// Muon's element-wise steps (Jordan et al. 2024; as torch.optim.Muon). All lanes of an element's inputs are read before
// its outputs are written.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu {

void MuonDirection(const MuonDirectionArgs& a) {
  if (*a.apply == 0) {  // the gradient may be infinite
    std::copy_n(a.momentum, a.n, a.direction);
    return;
  }
  const auto beta = static_cast<float>(a.beta), lerp = static_cast<float>(1 - a.beta);
  const float scale = *a.scale;
  ForElements(a.n, [=](int64_t i, auto lanes) {
    const F16 g = Load(a.gradient + i, lanes) * scale, before = Load(a.momentum + i, lanes);
    const F16 momentum = before + lerp * (g - before);
    Store(a.direction + i, a.nesterov ? g + beta * (momentum - g) : momentum, lanes);
    Store(a.momentum + i, momentum, lanes);
  });
}

void Normalize(const NormalizeArgs& a) {
  const double norm = std::max(std::sqrt(static_cast<double>(*a.squares)), a.eps);
  const auto inverse = static_cast<float>(1 / norm);
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    T* y = a.y.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) { Store(y + i, Load(a.x + i, lanes) * inverse, lanes); });
  });
}

void WeightedSum(const WeightedSumArgs& a) {
  const auto alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  ForElementType(a.z.dtype, [&]<typename T>(T) {
    const T *x = a.x.As<T>(), *y = a.y.As<T>();
    T* z = a.z.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      Store(z + i, alpha * Load(x + i, lanes) + beta * Load(y + i, lanes), lanes);
    });
  });
}

void MuonUpdate(const MuonUpdateArgs& a) {
  if (*a.apply == 0) return;
  const double lr = *a.lr;
  const auto kept = static_cast<float>(1 - lr * a.weight_decay), step = static_cast<float>(lr * a.factor);
  ForElementType(a.orthogonal.dtype, [&]<typename T>(T) {
    const T* orthogonal = a.orthogonal.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      Store(a.master + i, Load(a.master + i, lanes) * kept - step * Load(orthogonal + i, lanes), lanes);
    });
  });
}

}  // namespace espalier::cpu
