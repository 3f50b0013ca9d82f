// Rotary position embedding (Su et al. 2021, eq. 34).
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Rope(const RopeArgs& a) {
  const int64_t half = a.rope_dim / 2, heads = a.rotated / a.head_dim, apart = a.adjacent ? 1 : half;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* angles = a.table + r % a.length * a.rope_dim;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double c = angles[i], s = static_cast<double>(a.sine_sign) * angles[half + i];
        const int64_t at = r * a.width + h * a.head_dim + a.first + (a.adjacent ? 2 * i : i);
        const double x0 = Get(a.x, at), x1 = Get(a.x, at + apart);
        Set(a.y, at, x0 * c - x1 * s);
        Set(a.y, at + apart, x1 * c + x0 * s);
      }
      for (int64_t i = 0; i < a.head_dim; ++i) {
        if (a.first <= i && i < a.first + a.rope_dim) continue;
        const int64_t at = r * a.width + h * a.head_dim + i;
        Set(a.y, at, Get(a.x, at));
      }
    }
    for (int64_t at = r * a.width + a.rotated; at < (r + 1) * a.width; ++at) Set(a.y, at, Get(a.x, at));
  }
}

// The angle is computed in fp32, as in Hugging Face's Llama.
void RopeTable(const RopeTableArgs& a) {
  const int64_t width = a.rule.head_dim, half = width / 2;
  for (int64_t s = 0; s < a.length; ++s) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(a.positions[s]) * RopeFrequency(a.rule, i);
      Set(a.table, s * width + i, a.rule.amplitude * std::cos(static_cast<double>(angle)));
      Set(a.table, s * width + half + i, a.rule.amplitude * std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace espalier::reference
