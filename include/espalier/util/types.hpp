// Element types, shapes and the bf16 format, which all modules share.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// Element type of a tensor. kI32 holds token ids and positions. The two fp8 formats (Micikevicius et al. 2022) are
/// operands of matmuls: kF8E4M3 has 4 bits of exponent and 3 of mantissa, kF8E5M2 has 5 and 2. kF8E8M0 has 8 bits of
/// exponent, neither sign nor mantissa: the powers of two that scale blocks of fp8 (OCP Microscaling Formats v1.0,
/// 2023).
enum class Dtype : uint8_t { kF32, kBf16, kI32, kF8E4M3, kF8E5M2, kF8E8M0 };
inline constexpr std::array kDtypes = {Dtype::kF32,    Dtype::kBf16,   Dtype::kI32,
                                       Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF8E8M0};

/// An operand of matmuls.
constexpr bool IsFp8(Dtype dtype) { return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2; }

/// The device that runs a program: the host's cores, or one GPU per rank. Workspaces and bits depend on it.
enum class DeviceKind : uint8_t { kCpu, kCuda };

/// Bytes of one element.
constexpr int64_t SizeOf(Dtype dtype) {
  return IsFp8(dtype) || dtype == Dtype::kF8E8M0 ? 1 : dtype == Dtype::kBf16 ? 2 : 4;
}

/// "f32", "bf16", "i32", "f8e4m3", "f8e5m2" or "f8e8m0".
std::string_view Name(Dtype dtype);

/// Extents of a tensor, outermost first (row-major). Empty: a scalar.
using Shape = std::vector<int64_t>;

/// Number of elements; 1 for a scalar.
int64_t Volume(const Shape& shape);

/// "[2,3]".
std::string ToString(const Shape& shape);

/// bfloat16: the upper half of an IEEE fp32.
struct Bf16 {
  uint16_t bits = 0;
};

/// Exact.
constexpr float ToFloat(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

/// Rounds to nearest, ties to even; NaN stays NaN.
constexpr Bf16 ToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace espalier
