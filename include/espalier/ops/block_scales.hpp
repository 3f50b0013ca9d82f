// Scales of blocks of fp8 values, MXFP8: 32 neighbours along the contracted dim share a power of two (OCP Microscaling
// Formats v1.0, 2023). The scales of an operand of `lines` rows or columns and `depth` contracted elements lie in tiles
// of 128 lines by 4 blocks, as cuBLASLt reads them ("1D Block Scaling Factors Layout" of the cuBLAS documentation), on
// all devices; tiles that are not full are padded. src/kernels/fp8.hpp has the place of each.
#pragma once

#include <cstdint>

namespace espalier {

inline constexpr int64_t kScaleBlock = 32;
inline constexpr int64_t kScaleTileLines = 128, kScaleTileBlocks = 4;

/// Bytes of the scales of an operand, whole tiles of 512. `depth` is a multiple of kScaleBlock.
constexpr int64_t BlockScaleBytes(int64_t lines, int64_t depth) {
  const auto whole = [](int64_t n, int64_t of) { return (n + of - 1) / of * of; };
  return whole(lines, kScaleTileLines) * whole(depth / kScaleBlock, kScaleTileBlocks);
}

}  // namespace espalier
