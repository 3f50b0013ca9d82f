#include "huggingface/mxfp4.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier {
namespace {

constexpr int64_t kBytesOfBlock = kMxfp4Block / 2;
constexpr int64_t kBlocksAtOnce = 1 << 12;
constexpr int kBias = 127, kNan = 255;

float ValueOf(int code, int scale) {
  constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (scale == kNan) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = std::ldexp(kMagnitudes[code & 7], scale - kBias);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace

void ReadMxfp4(const Mxfp4Tensor& tensor, int64_t first, int64_t count, float* out) {
  const int64_t end = first + count;
  std::vector<uint8_t> bytes(kBlocksAtOnce * kBytesOfBlock), scales(kBlocksAtOnce);
  for (int64_t block = first / kMxfp4Block; block * kMxfp4Block < end; block += kBlocksAtOnce) {
    const int64_t some = std::min(kBlocksAtOnce, (end + kMxfp4Block - 1) / kMxfp4Block - block);
    tensor.blocks_file->ReadBytes(*tensor.blocks, block * kBytesOfBlock, some * kBytesOfBlock, bytes.data());
    tensor.scales_file->ReadBytes(*tensor.scales, block, some, scales.data());
    const int64_t begin = block * kMxfp4Block, from = std::max(first, begin),
                  to = std::min(end, begin + some * kMxfp4Block);
    for (int64_t i = from; i < to; ++i) {
      const int64_t here = i - begin;
      const int byte = bytes[static_cast<size_t>(here / 2)];
      out[i - first] = ValueOf(here % 2 == 0 ? byte & 15 : byte >> 4, scales[static_cast<size_t>(here / kMxfp4Block)]);
    }
  }
}

}  // namespace espalier
