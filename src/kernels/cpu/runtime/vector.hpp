// Sixteen fp32 lanes, as GCC's vector extension: one zmm register with AVX-512, several narrower ones elsewhere. Every
// kernel of this backend computes in these lanes, tails included, so an element's bits do not depend on its place.
#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <cstring>
#include <type_traits>
#include <utility>

#include "espalier/util/types.hpp"

namespace espalier::cpu {

inline constexpr int64_t kLanes = 16;

using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using U16 = uint32_t __attribute__((vector_size(64)));
using H16 = uint16_t __attribute__((vector_size(32)));  ///< sixteen bf16
using D8 = double __attribute__((vector_size(64)));
using F8 = float __attribute__((vector_size(32)));

/// Number of lanes in use, known to be all of them; an int64_t is a tail.
using AllLanes = std::integral_constant<int64_t, kLanes>;

inline F16 Broadcast(float x) { return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

inline constexpr I16 kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Sixteen bits to 32 and back. GCC 12 makes several instructions of a plain conversion, and warns of the intrinsics
/// without a mask.
inline U16 Unsigned(H16 x) {
#ifdef __AVX512F__
  return std::bit_cast<U16>(_mm512_maskz_cvtepu16_epi32(0xffff, std::bit_cast<__m256i>(x)));
#else
  return __builtin_convertvector(x, U16);
#endif
}
inline H16 LowHalves(U16 x) {
#ifdef __AVX512F__
  return std::bit_cast<H16>(_mm512_maskz_cvtepi32_epi16(0xffff, std::bit_cast<__m512i>(x)));
#else
  return __builtin_convertvector(x, H16);
#endif
}

/// Exact.
inline F16 Widen(H16 x) { return std::bit_cast<F16>(Unsigned(x) << 16); }

/// Rounds to nearest, ties to even; NaN stays NaN. Processors with AVX512-BF16 flush subnormal numbers to zero.
inline H16 Narrow(F16 x) {
#ifdef __AVX512BF16__
  return std::bit_cast<H16>(_mm512_cvtneps_pbh(x));
#else
  const U16 u = std::bit_cast<U16>(x);
  const U16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return LowHalves((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
#endif
}

/// Sixteen words of two bf16, the lower half of each from `low`.
inline F16 Interleave(H16 low, H16 high) { return std::bit_cast<F16>(Unsigned(low) | (Unsigned(high) << 16)); }

/// The same of numbers that are narrowed.
inline F16 NarrowPairs(F16 low, F16 high) {
#ifdef __AVX512BF16__
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto both =
      std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(std::bit_cast<__m512>(high), std::bit_cast<__m512>(low)));
  return std::bit_cast<F16>(_mm512_permutexvar_epi16(order, both));
#else
  return Interleave(Narrow(low), Narrow(high));
#endif
}

/// Loads lanes from memory of any alignment; lanes not in use are 0.
inline F16 Load(const float* p, AllLanes = {}) {
  F16 x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline F16 Load(const Bf16* p, AllLanes = {}) {
  H16 x;
  std::memcpy(&x, p, sizeof x);
  return Widen(x);
}
inline F16 Load(const float* p, int64_t lanes) {
  F16 x{};
  std::memcpy(&x, p, static_cast<size_t>(lanes) * sizeof(float));
  return x;
}
inline F16 Load(const Bf16* p, int64_t lanes) {
  H16 x{};
  std::memcpy(&x, p, static_cast<size_t>(lanes) * sizeof(Bf16));
  return Widen(x);
}

/// Stores the lanes in use, rounding to the element type.
inline void Store(float* p, F16 x, AllLanes = {}) { std::memcpy(p, &x, sizeof x); }
inline void Store(Bf16* p, F16 x, AllLanes = {}) {
  const H16 h = Narrow(x);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}
inline void Store(float* p, F16 x, int64_t lanes) { std::memcpy(p, &x, static_cast<size_t>(lanes) * sizeof(float)); }
inline void Store(Bf16* p, F16 x, int64_t lanes) {
  const H16 h = Narrow(x);
  std::memcpy(static_cast<void*>(p), &h, static_cast<size_t>(lanes) * sizeof(Bf16));
}

/// `x` rounded to the element type and back.
template <typename T>
F16 Rounded(F16 x) {
  if constexpr (std::is_same_v<T, Bf16>) return Widen(Narrow(x));
  return x;
}

/// x unchanged, hidden from the compiler: a multiplication is rounded before its result is added to something
/// (-ffp-contract=fast).
inline F16 Opaque(F16 x) {
#ifdef __AVX512F__
  asm("" : "+v"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}

/// Calls f(i, lanes) for i = begin, begin + 16, ... while i < end.
template <typename F>
inline void ForLanes(int64_t begin, int64_t end, F f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, AllLanes{});
  if (i < end) f(i, end - i);
}

inline F16 Max(F16 a, F16 b) {
#ifdef __AVX512F__
  return _mm512_maskz_max_ps(0xffff, a, b);  // this form: GCC 12 warns of its own plain one
#else
  return a > b ? a : b;
#endif
}

/// Sum of all lanes, as a tree of fixed shape.
inline float Sum(F16 x) {
  float v[kLanes];
  Store(v, x);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}
inline double Sum(D8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

inline float MaxOf(F16 x) {
  float v[kLanes];
  Store(v, x);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  }
  return v[0];
}

/// x, with 0 in the lanes from `lanes` on. Any count: none below 1, all from 16 on.
inline F16 KeepFirst(F16 x, int64_t lanes) {
  return kLaneIndex < static_cast<int32_t>(lanes < 0 ? 0 : lanes > kLanes ? kLanes : lanes) ? x : F16{};
}

/// Adds sixteen lanes to eight doubles, exactly widened.
inline D8 AddWide(D8 sum, F16 x) {
  F8 half[2];
  std::memcpy(half, &x, sizeof x);
  return sum + (__builtin_convertvector(half[0], D8) + __builtin_convertvector(half[1], D8));
}

/// e^x to within 2 ulp (largest error found in [-87.3, 88.3]: 1.3 ulp). 0 below -87.336, infinity above
/// 88.376, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite 1980), then a polynomial for e^r (Cephes
/// expf).
inline F16 Exp(F16 x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const F16 top = Broadcast(88.8f);
  const F16 bounded = x > top ? top : x;
  const F16 shifted = bounded * 1.44269504088896341f + kRound;
  const F16 n = shifted - kRound;
  F16 r = bounded - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  F16 p = Broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const F16 power = std::bit_cast<F16>((std::bit_cast<I16>(shifted) + 127) << 23);
  return x < -87.336f ? F16{} : p * power;
}

/// Swaps, of every pair of lanes `kStride` apart, the upper one of `a` with the lower one of `b`.
template <int kStride, int... kLane>
inline void SwapLanes(F16& a, F16& b, std::integer_sequence<int, kLane...>) {
  const F16 low = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLane - kStride + kLanes : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLane + kLanes : kLane + kStride)...);
  a = low;
}

template <int kStride>
inline void TransposeStep(F16 (&x)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & kStride) == 0) SwapLanes<kStride>(x[i], x[i + kStride], std::make_integer_sequence<int, kLanes>());
}

/// Transposes a 16 x 16 block of 32-bit words, row i in x[i].
inline void Transpose(F16 (&x)[kLanes]) {
  TransposeStep<1>(x);
  TransposeStep<2>(x);
  TransposeStep<4>(x);
  TransposeStep<8>(x);
}

}  // namespace espalier::cpu
