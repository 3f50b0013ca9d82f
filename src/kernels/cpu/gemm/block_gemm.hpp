// GEMMs of small fp32 or bf16 blocks, packed in the caches and accumulated in fp32 registers: the core of attention.
//
// A packed operand is made of 32-bit words. A word holds kPack adjacent elements along the contracted dim: one fp32
// (kPack = 1) or two bf16 (kPack = 2, for AVX512-BF16's dot products and AMX's tiles). Words are stored in float
// arrays, as bits.
#pragma once

#include "amx_gemm.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Where row i, word p of the left operand is: at data[i * stride + p] or at data[p * stride + i].
enum class Order { kRowMajor, kColumnMajor };

/// Vectors per row of a register tile. With two vectors, 32 registers hold 16 sums of 8 rows, with 10 loads for 16
/// multiply-adds. With 16 registers, 6 rows fill 15; 12 or 10 sums hide the latency of two multiply-adds per cycle.
inline constexpr int kRegisterVectors = 2;

/// sum + a b, a being broadcast.
template <int kPack>
Floats MultiplyAdd(Floats sum, float a, Floats b) {
  static_assert(kPack == 1 || kPack == 2);
#ifdef __AVX512BF16__
  if constexpr (kPack == 2) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(Broadcast(a)), std::bit_cast<__m512bh>(b));
  }
#endif
  return sum + a * b;
}

/// c[kRows][kLanes kVectors] (+)= a[kRows][words] b[words][kLanes kVectors].
template <int kPack, Order kOrder, int kRows, int kVectors>
void RegisterTile(int64_t words, ConstRows a, ConstRows b, Rows c, bool accumulate) {
  Floats sums[kRows][kVectors] = {};
  if (accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Load(c.data + r * c.stride + v * kLanes);
    }
  }
  int64_t p = 0;
  do {
    Floats row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = Load(b.data + p * b.stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float x = kOrder == Order::kRowMajor ? a.data[r * a.stride + p] : a.data[p * a.stride + r];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd<kPack>(sums[r][v], x, row[v]);
    }
  } while (++p < words);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(c.data + r * c.stride + v * kLanes, sums[r][v]);
  }
}

/// c[kRows][n] (+)= a[kRows][words] b[words][n], of row r and the ones after it.
template <int kPack, Order kOrder, int kRows>
void RegisterRows(int64_t r, int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
  const ConstRows rows = kOrder == Order::kRowMajor ? a.From(r * a.stride) : a.From(r);
  const Rows sums = c.From(r * c.stride);
  constexpr int64_t kWidth = kRegisterVectors * kLanes;
  int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth)
    RegisterTile<kPack, kOrder, kRows, kRegisterVectors>(words, rows, b.From(j), sums.From(j), accumulate);
  if (j < n) RegisterTile<kPack, kOrder, kRows, 1>(words, rows, b.From(j), sums.From(j), accumulate);
}

/// c[16][n] (+)= a[16][words] b[words][n]; n is a multiple of kLanes, words > 0. In bf16, words are at most 32 in
/// column-major order, a multiple of 16 in the other, and b has a multiple of 16 words; an AmxTiles must exist.
template <int kPack, Order kOrder>
void RowTile(int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
#ifdef __AMX_BF16__
  if constexpr (kPack == 2) {
    if (UsesAmx() && kOrder == Order::kRowMajor) return AmxRows(words, a, b, n, c, accumulate);
    if (UsesAmx()) return AmxRowsOfColumns(words, a, b, n, c, accumulate);
  }
#endif
  static_assert(kTileRows == 16);
  if constexpr (kRegisters == 32) {
    RegisterRows<kPack, kOrder, 8>(0, words, a, b, n, c, accumulate);
    RegisterRows<kPack, kOrder, 8>(8, words, a, b, n, c, accumulate);
  } else {
    RegisterRows<kPack, kOrder, 6>(0, words, a, b, n, c, accumulate);
    RegisterRows<kPack, kOrder, 5>(6, words, a, b, n, c, accumulate);
    RegisterRows<kPack, kOrder, 5>(11, words, a, b, n, c, accumulate);
  }
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
