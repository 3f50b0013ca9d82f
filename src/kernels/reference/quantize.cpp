// Values in fp8 and their scales.
#include <algorithm>

#include "kernels/fp8.hpp"
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// Rounds rows [begin, end) and columns [first, last) of y with one scale, which it returns.
float Round(const QuantizeArgs& a, int64_t begin, int64_t end, int64_t first, int64_t last) {
  const auto source = [&](int64_t r, int64_t c) {
    return a.x.As<Bf16>()[a.transposed ? c * a.width + r : r * a.width + c];
  };
  uint32_t largest = 0;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = first; c < last; ++c) largest = std::max(largest, MagnitudeBits(source(r, c)));
  const float scale = ScaleFor(a.y.dtype, largest);
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = first; c < last; ++c) {
      const float scaled = ToFloat(source(r, c)) / scale;
      a.y.As<uint8_t>()[r * a.Depth() + c] =
          a.y.dtype == Dtype::kF8E4M3 ? ToFp8<Dtype::kF8E4M3>(scaled) : ToFp8<Dtype::kF8E5M2>(scaled);
    }
  return scale;
}

void QuantizeInBlocks(const QuantizeArgs& a) {
  uint8_t* const scales = a.scales.As<uint8_t>();
  std::fill_n(scales, a.scale_bytes, uint8_t{0});
  for (int64_t r = 0; r < a.Lines(); ++r)
    for (int64_t block = 0; block < a.Depth() / kScaleBlock; ++block)
      scales[BlockScaleAt(r, block, a.Depth())] =
          ToE8M0(Round(a, r, r + 1, block * kScaleBlock, (block + 1) * kScaleBlock));
}

void QuantizeBlock(const QuantizeArgs& a) {
  if (a.scale_of == ScaleOf::kBlock) return QuantizeInBlocks(a);
  float* const scales = a.scales.As<float>();
  if (a.scale_of == ScaleOf::kTensor) return void(scales[0] = Round(a, 0, a.Lines(), 0, a.Depth()));
  for (int64_t r = 0; r < a.Lines(); ++r) {
    if (a.expert_of_row != nullptr && a.expert_of_row[r] == kNoExpert) return;
    scales[r] = Round(a, r, r + 1, 0, a.Depth());
  }
}

}  // namespace

void Quantize(const QuantizeArgs& a) {
  for (int64_t block = 0; block < a.blocks; ++block) QuantizeBlock(a.Block(block));
}

}  // namespace espalier::reference
