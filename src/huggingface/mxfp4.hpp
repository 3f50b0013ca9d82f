// Weights in MXFP4 (OCP Microscaling Formats 1.0, 5.4): blocks of 32 values in e2m1 that share a scale in e8m0. A byte
// has two values, the first in its low half; a scale s means 2^(s - 127), and 255 is NaN.
#pragma once

#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

inline constexpr int64_t kMxfp4Block = 32;

/// A tensor of blocks u8[..., 16], with their scales u8[...], which may be in another file.
struct Mxfp4Tensor {
  const SafetensorsFile *blocks_file, *scales_file;
  const SafeTensor *blocks, *scales;
};

/// Values [first, first + count) as fp32, which has all of them exactly.
void ReadMxfp4(const Mxfp4Tensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace espalier
