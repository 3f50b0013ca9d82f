// Muon's element-wise steps (Jordan et al. 2024; as torch.optim.Muon). All lanes of an element's inputs are read before
// its outputs are written.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/rounding.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

namespace {

/// New momentum and direction of sixteen elements.
struct Moved {
  Floats momentum, direction;
};
Moved MovedOf(const MuonDirectionArgs& a, Floats g, Floats before) {
  const auto beta = static_cast<float>(a.beta), lerp = static_cast<float>(1 - a.beta);
  const Floats momentum = before + lerp * (g - before);
  return {momentum, a.nesterov ? g + beta * (momentum - g) : momentum};
}

}  // namespace

void MuonDirection(const MuonDirectionArgs& a) {
  const float scale = *a.scale;
  ForElementType(a.momentum.dtype, [&]<typename T>(T) {
    T* const momentum = a.momentum.As<T>();
    if (*a.apply == 0)  // the gradient may be infinite
      return ForElements(a.n, [=](int64_t i, auto lanes) { Store(a.direction + i, Load(momentum + i, lanes), lanes); });
    if constexpr (std::is_same_v<T, float>) {
      ForElements(a.n, [=](int64_t i, auto lanes) {
        const Moved moved = MovedOf(a, Product(Load(a.gradient + i, lanes), scale), Load(momentum + i, lanes));
        Store(a.direction + i, moved.direction, lanes);
        Store(momentum + i, moved.momentum, lanes);
      });
    } else {
      const auto step = static_cast<uint32_t>(*a.step);
      ParallelRanges(a.n, kWorthAThread, [&](int64_t begin, int64_t end) {
        ForRandomLanes(a.rounding, step, begin, end, [&](int64_t i, auto lanes, Words words) {
          const Moved moved = MovedOf(a, Product(Load(a.gradient + i, lanes), scale), Load(momentum + i, lanes));
          Store(a.direction + i, moved.direction, lanes);
          StoreRounded(momentum + i, moved.momentum, words, 0, lanes);
        });
      });
    }
  });
}

void Normalize(const NormalizeArgs& a) {
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    for (int64_t m = 0; m < a.matrices; ++m) {
      const float* x = a.x + m * a.n;
      T* y = a.y.As<T>() + m * a.n;
      const double norm = std::max(std::sqrt(static_cast<double>(a.squares[m])), a.eps);
      const auto inverse = static_cast<float>(1 / norm);
      ForElements(a.n, [=](int64_t i, auto lanes) { Store(y + i, Load(x + i, lanes) * inverse, lanes); });
    }
  });
}

void WeightedSum(const WeightedSumArgs& a) {
  const auto alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  ForElementType(a.z.dtype, [&]<typename T>(T) {
    const T *x = a.x.As<T>(), *y = a.y.As<T>();
    T* z = a.z.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      Store(z + i, alpha * Load(x + i, lanes) + Product(Load(y + i, lanes), beta), lanes);
    });
  });
}

void MuonUpdate(const MuonUpdateArgs& a) {
  if (*a.apply == 0) return;
  const double lr = *a.lr;
  const auto kept = static_cast<float>(1 - lr * a.weight_decay), step = static_cast<float>(lr * a.factor);
  Bf16* copy = a.copy.As<Bf16>();
  ForElementType(a.orthogonal.dtype, [&]<typename T>(T) {
    const T* orthogonal = a.orthogonal.As<T>();
    ForElements(a.n, [=](int64_t i, auto lanes) {
      const Floats master = Load(a.master + i, lanes) * kept - Product(Load(orthogonal + i, lanes), step);
      Store(a.master + i, master, lanes);
      if (copy != nullptr) Store(copy + i, master, lanes);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
