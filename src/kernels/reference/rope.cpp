// Rotary position embedding (Su et al. 2021, eq. 34), rotate-half as in Hugging Face's Llama.
#include "../arithmetic.hpp"
#include "access.hpp"

namespace espalier::reference {

// x T[b,s,n], table f32[s,e] -> T[b,s,n]
void Rope(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& table = call.inputs[1];
  const Tensor& y = call.outputs[0];
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  const double sign = call.attributes->NumberOr("inverse", 0) != 0 ? -1 : 1;
  const int64_t half = e / 2, rows = RowsOf(x), positions = x.shape[1], heads = ColumnsOf(x) / e;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double c = Get(table, r % positions * e + i), s = sign * Get(table, r % positions * e + half + i);
        const int64_t at = (r * heads + h) * e + i;
        const double x0 = Get(x, at), x1 = Get(x, at + half);
        Set(y, at, x0 * c - x1 * s);
        Set(y, at + half, x1 * c + x0 * s);
      }
    }
  }
}

// positions i32[s] -> f32[s,e]: cosines, then sines. The angle is an fp32 product, as in Hugging Face's Llama.
void RopeTable(const KernelCall& call) {
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  const double theta = call.attributes->Number("theta");
  const int64_t positions = Volume(call.inputs[0].shape), half = e / 2;
  for (int64_t s = 0; s < positions; ++s) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(call.inputs[0].As<int32_t>()[s]) * RopeFrequency(theta, e, i);
      Set(call.outputs[0], s * e + i, std::cos(static_cast<double>(angle)));
      Set(call.outputs[0], s * e + half + i, std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace espalier::reference
