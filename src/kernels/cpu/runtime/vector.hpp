// Vectors of fp32 as wide as the level's registers: 16 lanes with AVX-512, 8 with AVX2, 4 with SSE2 and NEON. They use
// GCC's vector extension; only this file has intrinsics, where GCC 12 compiles plain expressions to slow code. Every
// kernel of this backend computes in these lanes, tails included, so an element's bits do not depend on its place.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstring>
#include <type_traits>
#include <utility>

#include "espalier/util/types.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

#if defined(__AVX512F__)
inline constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int64_t kLanes = 8;
#else
inline constexpr int64_t kLanes = 4;
#endif

/// Number of vector registers.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));  ///< a vector of as many bf16
using Doubles = double __attribute__((vector_size(4 * kLanes)));   ///< a vector of half as many doubles

/// Number of lanes in use, if it is all of them; an int64_t for a tail.
using AllLanes = std::integral_constant<int64_t, kLanes>;

inline Floats Broadcast(float x) { return x - Floats{}; }

template <int... kLane>
constexpr Ints Counted(std::integer_sequence<int, kLane...>) {
  return Ints{kLane...};
}
inline constexpr Ints kLaneIndex = Counted(std::make_integer_sequence<int, kLanes>());

/// Widens 16 bits to 32, and narrows words below 2^16. (GCC 12 warns about AVX-512's intrinsics without a mask.)
inline Words Unsigned(Halves x) {
#if defined(__AVX512F__)
  return std::bit_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, std::bit_cast<__m256i>(x)));
#elif defined(__AVX2__)
  return std::bit_cast<Words>(_mm256_cvtepu16_epi32(std::bit_cast<__m128i>(x)));
#else
  return __builtin_convertvector(x, Words);
#endif
}
inline Halves Shortened(Words x) {
#if defined(__AVX512F__)
  return std::bit_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, std::bit_cast<__m512i>(x)));
#elif defined(__AVX2__)
  const auto v = std::bit_cast<__m256i>(x);
  return std::bit_cast<Halves>(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
#else
  return __builtin_convertvector(x, Halves);
#endif
}

/// Exact.
inline Floats Widen(Halves x) { return std::bit_cast<Floats>(Unsigned(x) << 16); }

/// Rounds to nearest, ties to even; NaN stays NaN. Processors with AVX512-BF16 flush subnormal numbers to zero.
inline Halves Narrow(Floats x) {
#ifdef __AVX512BF16__
  return std::bit_cast<Halves>(_mm512_cvtneps_pbh(x));
#else
  const Words u = std::bit_cast<Words>(x);
  const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return Shortened((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
#endif
}

/// Words of two bf16, the lower half of each from `low`.
inline Floats Interleave(Halves low, Halves high) {
  return std::bit_cast<Floats>(Unsigned(low) | (Unsigned(high) << 16));
}

/// The same for numbers that are narrowed.
inline Floats NarrowPairs(Floats low, Floats high) {
#ifdef __AVX512BF16__
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto both =
      std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(std::bit_cast<__m512>(high), std::bit_cast<__m512>(low)));
  return std::bit_cast<Floats>(_mm512_permutexvar_epi16(order, both));
#else
  return Interleave(Narrow(low), Narrow(high));
#endif
}

/// Whether the level multiplies pairs of bf16.
#ifdef __AVX512BF16__
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif

/// Loads lanes from memory of any alignment; lanes not in use are 0.
inline Floats Load(const float* p, AllLanes = {}) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline Floats Load(const Bf16* p, AllLanes = {}) {
  Halves x;
  std::memcpy(&x, p, sizeof x);
  return Widen(x);
}
inline Floats Load(const float* p, int64_t lanes) {
  Floats x{};
  std::memcpy(&x, p, static_cast<size_t>(lanes) * sizeof(float));
  return x;
}
inline Floats Load(const Bf16* p, int64_t lanes) {
  Halves x{};
  std::memcpy(&x, p, static_cast<size_t>(lanes) * sizeof(Bf16));
  return Widen(x);
}

/// Stores the lanes in use, rounding to the element type.
inline void Store(float* p, Floats x, AllLanes = {}) { std::memcpy(p, &x, sizeof x); }
inline void Store(Bf16* p, Floats x, AllLanes = {}) {
  const Halves h = Narrow(x);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}
inline void Store(float* p, Floats x, int64_t lanes) { std::memcpy(p, &x, static_cast<size_t>(lanes) * sizeof(float)); }
inline void Store(Bf16* p, Floats x, int64_t lanes) {
  const Halves h = Narrow(x);
  std::memcpy(static_cast<void*>(p), &h, static_cast<size_t>(lanes) * sizeof(Bf16));
}

/// `x` rounded to the element type and back.
template <typename T>
Floats Rounded(Floats x) {
  if constexpr (std::is_same_v<T, Bf16>) return Widen(Narrow(x));
  return x;
}

/// x unchanged, but opaque to the compiler: a multiplication is rounded before its result is added
/// (-ffp-contract=fast).
inline Floats Opaque(Floats x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__SSE2__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}

/// a b, rounded before it is added to anything. Where a sum has two products, or a product is used twice, the compiler
/// chooses in each loop which of them it fuses: an element's bits would depend on its place.
template <typename B>
Floats Product(Floats a, B b) {
  return Opaque(a * b);
}

/// Calls f(i, lanes) for i = begin, begin + kLanes, ... while i < end.
template <typename F>
inline void ForLanes(int64_t begin, int64_t end, F f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, AllLanes{});
  if (i < end) f(i, end - i);
}

/// a > b ? a : b, so b if one is NaN; and a < b ? a : b. (GCC 12 warns about AVX-512's intrinsics without a mask.)
inline Floats Max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
inline Floats Min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

inline Floats SquareRoot(Floats x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(x);
#else
  for (int64_t i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

/// All lanes, widened exactly: the lower half and the upper half.
struct Wide {
  Doubles low, high;
};
inline Wide Widened(Floats x) {
  using Half = float __attribute__((vector_size(2 * kLanes)));
  Half half[2];
  std::memcpy(half, &x, sizeof x);
  return {__builtin_convertvector(half[0], Doubles), __builtin_convertvector(half[1], Doubles)};
}
inline Floats ToFloats(const Wide& x) {
  using Half = float __attribute__((vector_size(2 * kLanes)));
  const Half half[2] = {__builtin_convertvector(x.low, Half), __builtin_convertvector(x.high, Half)};
  Floats result;
  std::memcpy(&result, half, sizeof result);
  return result;
}

/// Folds an array of kCount numbers by f, as a tree of fixed shape.
template <int64_t kCount, typename T, typename F>
inline T Folded(T (&v)[kCount], F f) {
  for (int64_t width = kCount / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) v[i] = f(v[i], v[i + width]);
  return v[0];
}

/// Sum of all lanes, as a tree of fixed shape.
inline float Sum(Floats x) {
  float v[kLanes];
  Store(v, x);
  return Folded(v, [](float a, float b) { return a + b; });
}
inline double Sum(Doubles x) {
  double v[kLanes / 2];
  std::memcpy(v, &x, sizeof x);
  return Folded(v, [](double a, double b) { return a + b; });
}
inline float MaxOf(Floats x) {
  float v[kLanes];
  Store(v, x);
  return Folded(v, [](float a, float b) { return a > b ? a : b; });
}

/// Sixteen sums at every level: with fewer, long sums would have larger rounding errors, and additions would wait for
/// each other.
struct Sums {
  Floats part[16 / kLanes] = {};
};

/// Calls f(part, i, lanes) for i = begin, begin + kLanes, ... while i < end: vector i belongs to sum.part[part].
template <typename F>
inline void ForSums(int64_t begin, int64_t end, F f) {
  constexpr int64_t kParts = 16 / kLanes;
  int64_t i = begin;
  for (; i + kParts * kLanes <= end; i += kParts * kLanes)
#pragma GCC unroll 4
    for (int64_t part = 0; part < kParts; ++part) f(part, i + part * kLanes, AllLanes{});
#pragma GCC unroll 4
  for (int64_t part = 0; part < kParts; ++part, i += kLanes) {
    if (i + kLanes <= end)
      f(part, i, AllLanes{});
    else if (i < end)
      f(part, i, end - i);
  }
}

/// The sum of all parts, as the same tree at every level.
inline float Sum(Sums sums) {
  for (int64_t width = 16 / kLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) sums.part[i] += sums.part[i + width];
  return Sum(sums.part[0]);
}

/// x, with 0 in the lanes from `lanes` on. Any count: keeps none below 1, all from kLanes on.
inline Floats KeepFirst(Floats x, int64_t lanes) {
  return kLaneIndex < static_cast<int32_t>(lanes < 0 ? 0 : lanes > kLanes ? kLanes : lanes) ? x : Floats{};
}

/// Adds all lanes to half as many doubles, exactly widened.
inline Doubles AddWide(Doubles sum, Floats x) {
  const Wide wide = Widened(x);
  return sum + (wide.low + wide.high);
}

/// e^x to within 2 ulp (largest error found in [-87.3, 88.3]: 1.3 ulp). 0 below -87.336, infinity above
/// 88.376, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite 1980), then a polynomial for e^r (Cephes
/// expf).
inline Floats Exp(Floats x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats bounded = Min(Broadcast(88.8f), x);
  const Floats shifted = bounded * 1.44269504088896341f + kRound;
  const Floats n = shifted - kRound;
  Floats r = bounded - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats p = Broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Floats power = std::bit_cast<Floats>((std::bit_cast<Ints>(shifted) + 127) << 23);
  return x < -87.336f ? Floats{} : p * power;
}

/// 2^t for t <= 127 to within 1 ulp; 2^-125 below, NaN for NaN. t = n + f with |f| <= 1/2, then the polynomial of
/// degree 6 for 2^f that has the smallest relative error and is 1 at 0 (Remez; 2.6e-9). If the argument can include the
/// factor log2(e) at no cost, this is faster than Exp.
inline Floats PowerOfTwo(Floats t) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats bounded = Max(Broadcast(-125.0f), t);
  const Floats shifted = bounded + kRound;
  const Floats f = bounded - (shifted - kRound);
  Floats p = Broadcast(1.5594677825e-4f);
  p = p * f + 1.3406643411e-3f;
  p = p * f + 9.6176927909e-3f;
  p = p * f + 5.5503103882e-2f;
  p = p * f + 2.4022652209e-1f;
  p = p * f + 6.9314724207e-1f;
  p = p * f + 1.0f;
  return p * std::bit_cast<Floats>((std::bit_cast<Ints>(shifted) + 127) << 23);
}

/// For every pair of lanes `kStride` apart, swaps the upper lane of `a` with the lower lane of `b`.
template <int kStride, int... kLane>
inline void SwapLanes(Floats& a, Floats& b, std::integer_sequence<int, kLane...>) {
  const Floats low = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLane - kStride + kLanes : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStride) != 0 ? kLane + kLanes : kLane + kStride)...);
  a = low;
}

template <int kStride>
inline void TransposeStep(Floats (&x)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & kStride) == 0) SwapLanes<kStride>(x[i], x[i + kStride], std::make_integer_sequence<int, kLanes>());
}

/// Transposes a square block of 32-bit words, row i in x[i].
inline void Transpose(Floats (&x)[kLanes]) {
  TransposeStep<1>(x);
  TransposeStep<2>(x);
  if constexpr (kLanes > 4) TransposeStep<4>(x);
  if constexpr (kLanes > 8) TransposeStep<8>(x);
}

/// High and low halves of the products of words with a constant, for which GCC 12 would use slow 64-bit
/// multiplications.
struct Products {
  Words high, low;
};
inline Products ProductsOf(Words x, uint32_t factor) {
#if defined(__AVX512F__)
  const __m512i v = std::bit_cast<__m512i>(x), f = _mm512_set1_epi32(static_cast<int>(factor));
  const __m512i even = _mm512_maskz_mul_epu32(0xff, v, f),
                odd = _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, v, 32), f);
  constexpr __mmask16 kEven = 0x5555, kOdd = 0xaaaa;
  return {std::bit_cast<Words>(_mm512_mask_shuffle_epi32(odd, kEven, even, _MM_PERM_DDBB)),
          std::bit_cast<Words>(_mm512_mask_shuffle_epi32(even, kOdd, odd, _MM_PERM_CCAA))};
#elif defined(__AVX2__)
  const __m256i v = std::bit_cast<__m256i>(x), f = _mm256_set1_epi32(static_cast<int>(factor));
  const __m256i even = _mm256_mul_epu32(v, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), f);
  constexpr int kOdd = 0xaa;
  return {std::bit_cast<Words>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, kOdd)),
          std::bit_cast<Words>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), kOdd))};
#else
  Products products;
  for (int64_t i = 0; i < kLanes; ++i) {
    const uint64_t product = uint64_t{x[i]} * factor;
    products.high[i] = static_cast<uint32_t>(product >> 32);
    products.low[i] = static_cast<uint32_t>(product);
  }
  return products;
#endif
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
