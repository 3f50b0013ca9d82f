// Values in fp8 and their scales.
#include "kernels/fp8.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

void QuantizeBlock(const QuantizeArgs& a) {
  const Bf16* x = a.x.As<Bf16>();
  const int64_t y_rows = a.transposed ? a.width : a.rows, y_width = a.transposed ? a.rows : a.width;
  const auto source = [&](int64_t r, int64_t c) { return a.transposed ? x[c * a.width + r] : x[r * a.width + c]; };
  const int64_t scales = a.scale_of == ScaleOf::kRow ? y_rows : 1, rows = y_rows / std::max<int64_t>(1, scales);
  for (int64_t s = 0; s < scales; ++s) {
    if (a.expert_of_row != nullptr && a.expert_of_row[s] == kNoExpert) return;
    uint32_t largest = 0;
    for (int64_t r = s * rows; r < (s + 1) * rows; ++r)
      for (int64_t c = 0; c < y_width; ++c) largest = std::max(largest, MagnitudeBits(source(r, c)));
    a.scales[s] = ScaleFor(a.y.dtype, largest);
    for (int64_t r = s * rows; r < (s + 1) * rows; ++r)
      for (int64_t c = 0; c < y_width; ++c) {
        const float scaled = ToFloat(source(r, c)) / a.scales[s];
        a.y.As<uint8_t>()[r * y_width + c] =
            a.y.dtype == Dtype::kF8E4M3 ? ToFp8<Dtype::kF8E4M3>(scaled) : ToFp8<Dtype::kF8E5M2>(scaled);
      }
  }
}

}  // namespace

void Quantize(const QuantizeArgs& a) {
  for (int64_t block = 0; block < a.blocks; ++block) QuantizeBlock(a.Block(block));
}

}  // namespace espalier::reference
