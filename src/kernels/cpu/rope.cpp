// Rotary position embedding (Su et al. 2021, eq. 34).
#include <algorithm>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// Rotates one head; `angles` holds its position's cosines, then sines. y may be x.
template <typename T>
void RotateHead(const T* x, const float* angles, float sine_sign, int64_t half, T* y) {
  ForLanes(0, half, [&](int64_t i, auto lanes) {
    const Floats c = Load(angles + i, lanes), s = sine_sign * Load(angles + half + i, lanes);
    const Floats x0 = Load(x + i, lanes), x1 = Load(x + half + i, lanes);
    const Rotated<Floats> rotated = RotatedOf(x0, x1, c, s);
    Store(y + i, rotated.x0, lanes);
    Store(y + half + i, rotated.x1, lanes);
  });
}

float Widen(float x) { return x; }
float Widen(Bf16 x) { return ToFloat(x); }
void Narrow(float x, float& to) { to = x; }
void Narrow(float x, Bf16& to) { to = ToBf16(x); }

/// The same where pairs are neighbours.
template <typename T>
void RotateNeighbours(const T* x, const float* angles, float sine_sign, int64_t half, T* y) {
  for (int64_t i = 0; i < half; ++i) {
    const Rotated<float> rotated =
        RotatedOf(Widen(x[2 * i]), Widen(x[2 * i + 1]), angles[i], sine_sign * angles[half + i]);
    Narrow(rotated.x0, y[2 * i]);
    Narrow(rotated.x1, y[2 * i + 1]);
  }
}

}  // namespace

void Rope(const RopeArgs& a) {
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    ForRows(a.rows, a.width, [&](int64_t r) {
      const float* angles = a.table + r % a.length * a.rope_dim;
      const T* x = a.x.As<T>() + r * a.width;
      T* y = a.y.As<T>() + r * a.width;
      for (int64_t c = 0; c < a.rotated; c += a.head_dim) {
        const int64_t first = c + a.first, end = first + a.rope_dim;
        const auto rotate = a.adjacent ? RotateNeighbours<T> : RotateHead<T>;
        rotate(x + first, angles, a.sine_sign, a.rope_dim / 2, y + first);
        if (y == x) continue;
        std::copy(x + c, x + first, y + c);
        std::copy(x + end, x + c + a.head_dim, y + end);
      }
      if (y != x) std::copy_n(x + a.rotated, a.width - a.rotated, y + a.rotated);
    });
  });
}

// Angles are fp32; cosines and sines are rounded from fp64. Once per step.
void RopeTable(const RopeTableArgs& a) {
  const int64_t width = a.rule.head_dim, half = width / 2;
  ParallelRanges(half, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float frequency = RopeFrequency(a.rule, i);
      for (int64_t s = 0; s < a.length; ++s) {
        const double angle = static_cast<float>(a.positions[s]) * frequency;
        a.table[s * width + i] = static_cast<float>(a.rule.amplitude * std::cos(angle));
        a.table[s * width + half + i] = static_cast<float>(a.rule.amplitude * std::sin(angle));
      }
    }
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
