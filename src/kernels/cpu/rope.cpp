// Rotary position embedding (Su et al. 2021, eq. 34), rotate-half as in Hugging Face's Llama.
#include "../arithmetic.hpp"
#include "kernels.hpp"

namespace espalier::cpu {
namespace {

/// Rotates one head; `table` holds its position's cosines, then sines. y may be x.
template <typename T>
void RotateHead(const T* x, const float* table, float sign, int64_t half, T* y) {
  ForLanes(0, half, [&](int64_t i, auto lanes) {
    const F16 c = Load(table + i, lanes), s = sign * Load(table + half + i, lanes);
    const F16 x0 = Load(x + i, lanes), x1 = Load(x + half + i, lanes);
    const Rotated<F16> rotated = RotatedOf(x0, x1, c, s);
    Store(y + i, rotated.x0, lanes);
    Store(y + half + i, rotated.x1, lanes);
  });
}

}  // namespace

// x T[b,s,n], table f32[s,e] -> T[b,s,n]
void Rope(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  const float sign = call.attributes->NumberOr("inverse", 0) != 0 ? -1.0f : 1.0f;
  const int64_t width = ColumnsOf(x), positions = x.shape[1];
  const float* table = call.inputs[1].As<float>();
  ForElementType(x.dtype, [&]<typename T>(T) {
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = r * width; c < (r + 1) * width; c += e) {
          RotateHead(x.As<T>() + c, table + r % positions * e, sign, e / 2, call.outputs[0].As<T>() + c);
        }
      }
    });
  });
}

// positions i32[s] -> f32[s,e]: cosines, then sines, rounded from fp64. Once a step.
void RopeTable(const KernelCall& call) {
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  const int64_t half = e / 2;
  const double theta = call.attributes->Number("theta");
  const auto* positions = call.inputs[0].As<int32_t>();
  float* table = call.outputs[0].As<float>();
  ParallelRanges(half, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float frequency = RopeFrequency(theta, e, i);
      for (int64_t s = 0; s < Volume(call.inputs[0].shape); ++s) {
        const double angle = static_cast<float>(positions[s]) * frequency;
        table[s * e + i] = static_cast<float>(std::cos(angle));
        table[s * e + half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

}  // namespace espalier::cpu
