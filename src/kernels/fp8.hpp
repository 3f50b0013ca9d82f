// The fp8 formats (Micikevicius et al. 2022) and the scaling of values, for all backends: e4m3 has no infinity and ends
// at 448, e5m2 ends at 57344. Values are rounded to the nearest, ties to even, and saturate at the largest. Infinities
// and NaN become NaN, so a step that is not finite stays so.
//
// The scale s of values is the smallest power of two for which largest |x| / s is within the format, and x is stored as
// x / s. Dividing by a power of two rounds only values that underflow; so does multiplying the sums of a matmul by it.
// So an x is rounded to the same value whatever other values share its scale, except close to zero.
//
// Blocks of 32 (espalier/ops/block_scales.hpp) have scales by the same rule, which rounds the exponent of largest |x| /
// 448 up, so that nothing saturates (Mishra et al. 2025, "Recipes for Pre-training LLMs with MXFP8"; OCP's floor of the
// exponent lets values above 448 saturate).
#pragma once

#include <bit>
#include <cstdint>

#include "espalier/ops/block_scales.hpp"
#include "espalier/util/types.hpp"
#include "kernels/host_device.hpp"

namespace espalier {

/// An fp8 format: bits of the mantissa, bias of the exponent, and the code of the largest value.
template <Dtype kDtype>
struct Fp8Format;
template <>
struct Fp8Format<Dtype::kF8E4M3> {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr uint32_t kLargest = 0x7e;
};
template <>
struct Fp8Format<Dtype::kF8E5M2> {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr uint32_t kLargest = 0x7b;
};
inline constexpr uint8_t kFp8Nan = 0x7f;

/// The code of x in an fp8 format.
template <Dtype kDtype>
ESPALIER_HOST_DEVICE inline uint8_t ToFp8(float x) {
  using F = Fp8Format<kDtype>;
  constexpr int kShift = 23 - F::kMantissa;
  // 2^kMagic has the smallest value of the format as its unit in the last place.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 23 + 1 - F::kBias - F::kMantissa) << 23;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 + 1 - F::kBias) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1u)) >> kShift) -
                          (static_cast<uint32_t>(127 - F::kBias) << F::kMantissa);
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) - kMagic;
  uint32_t code = magnitude < kSmallestNormal ? small : normal;
  code = code > F::kLargest ? F::kLargest : code;
  code |= bits >> 24 & 0x80u;
  return static_cast<uint8_t>(magnitude >= 0x7f800000u ? kFp8Nan : code);
}

/// The value of a code. Exact.
template <Dtype kDtype>
ESPALIER_HOST_DEVICE inline float FromFp8(uint8_t code) {
  using F = Fp8Format<kDtype>;
  constexpr float kSmallest = std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - F::kBias - F::kMantissa) << 23);
  const uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  if (magnitude > F::kLargest) return std::bit_cast<float>(0x7fc00000u);  // e5m2's infinity is never written
  const uint32_t bits = (magnitude << (23 - F::kMantissa)) + (static_cast<uint32_t>(127 - F::kBias) << 23);
  const float value =
      magnitude < (1u << F::kMantissa) ? static_cast<float>(magnitude) * kSmallest : std::bit_cast<float>(bits);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

/// FromFp8 of a type that is known at run time.
ESPALIER_HOST_DEVICE inline float FromFp8(Dtype dtype, uint8_t code) {
  return dtype == Dtype::kF8E4M3 ? FromFp8<Dtype::kF8E4M3>(code) : FromFp8<Dtype::kF8E5M2>(code);
}

/// The magnitude of a bf16 as an integer. Integers are ordered like the magnitudes, and NaN is above all of them, so a
/// maximum does not depend on the order of its values.
ESPALIER_HOST_DEVICE inline uint32_t MagnitudeBits(Bf16 x) { return x.bits & 0x7fffu; }

/// The scale of values whose largest MagnitudeBits is `largest`: 1 if all are 0, NaN if one is not finite. It is
/// between 2^-126 and 2^126, so that neither it nor its inverse is subnormal.
ESPALIER_HOST_DEVICE inline float ScaleFor(Dtype dtype, uint32_t largest) {
  if (largest == 0) return 1.0f;
  if (largest >= 0x7f80u) return std::bit_cast<float>(0x7fc00000u);
  // Both formats end at 1.75 times a power of two: 2^8 and 2^15.
  const int top = dtype == Dtype::kF8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(largest >> 7) - 127, above = (largest & 0x7fu) > 0x60u ? 1 : 0;
  int power = exponent - top + above;
  power = power < -126 ? -126 : power > 126 ? 126 : power;
  return std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
}

/// 1 / scale, exactly; NaN of NaN.
ESPALIER_HOST_DEVICE inline float InverseOf(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  return bits >= 0x7f800000u ? scale : std::bit_cast<float>((254u << 23) - bits);
}

/// The code of a scale in f8e8m0: the exponent of its fp32. Exact for powers of two from 2^-126 on, and for NaN.
ESPALIER_HOST_DEVICE inline uint8_t ToE8M0(float scale) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
}

/// The value of a code. Exact.
ESPALIER_HOST_DEVICE inline float FromE8M0(uint8_t code) {
  return std::bit_cast<float>(code == 0 ? 0x00400000u : code == 0xff ? 0x7fc00000u : uint32_t{code} << 23);
}

/// Where the scale of block `block` of line `line` is among the scales of an operand of `depth` contracted elements.
ESPALIER_HOST_DEVICE inline int64_t BlockScaleAt(int64_t line, int64_t block, int64_t depth) {
  const int64_t tiles = (depth / kScaleBlock + kScaleTileBlocks - 1) / kScaleTileBlocks,
                tile = line / kScaleTileLines * tiles + block / kScaleTileBlocks;
  return tile * kScaleTileLines * kScaleTileBlocks + line % 32 * 16 + line % kScaleTileLines / 32 * 4 +
         block % kScaleTileBlocks;
}

}  // namespace espalier
