// GEMMs of small fp32 or bf16 blocks, packed in the caches and accumulated in fp32 registers: the core of attention.
//
// A packed operand is made of 32-bit words. A word holds kPack adjacent elements along the contracted dim: one fp32
// (kPack = 1) or two bf16 (kPack = 2, for AVX512-BF16's dot products and AMX's tiles). Words are stored in float
// arrays, as bits.
#pragma once

#include "amx_gemm.hpp"

namespace espalier::cpu {

/// Where row i, word p of the left operand is: at data[i * stride + p] or at data[p * stride + i].
enum class Order { kRowMajor, kColumnMajor };

/// Rows of a register tile. With two vectors a row there are 16 sums: enough to hide the latency of two multiply-adds a
/// cycle, and 10 loads for 16 of them.
inline constexpr int kRegisterRows = 8;

/// sum + a b, a being broadcast.
template <int kPack>
F16 MultiplyAdd(F16 sum, float a, F16 b) {
  static_assert(kPack == 1 || kPack == 2);
#ifdef __AVX512BF16__
  if constexpr (kPack == 2) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(Broadcast(a)), std::bit_cast<__m512bh>(b));
  }
#endif
  return sum + a * b;
}

/// c[8][16 kVectors] (+)= a[8][words] b[words][16 kVectors].
template <int kPack, Order kOrder, int kVectors>
void RegisterTile(int64_t words, ConstRows a, ConstRows b, Rows c, bool accumulate) {
  F16 sums[kRegisterRows][kVectors] = {};
  if (accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRegisterRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Load(c.data + r * c.stride + v * kLanes);
    }
  }
  for (int64_t p = 0; p < words; ++p) {
    F16 row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = Load(b.data + p * b.stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRegisterRows; ++r) {
      const float x = kOrder == Order::kRowMajor ? a.data[r * a.stride + p] : a.data[p * a.stride + r];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd<kPack>(sums[r][v], x, row[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRegisterRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(c.data + r * c.stride + v * kLanes, sums[r][v]);
  }
}

/// c[8][n] (+)= a[8][words] b[words][n]
template <int kPack, Order kOrder>
void RegisterRows(int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes)
    RegisterTile<kPack, kOrder, 2>(words, a, b.From(j), c.From(j), accumulate);
  if (j < n) RegisterTile<kPack, kOrder, 1>(words, a, b.From(j), c.From(j), accumulate);
}

/// c[16][n] (+)= a[16][words] b[words][n]; n is a multiple of 16. In bf16, words are at most 32 in column-major order,
/// a multiple of 16 in the other, and b has whole sixteens of them; an AmxTiles must exist.
template <int kPack, Order kOrder>
void RowTile(int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
#ifdef __AMX_BF16__
  if constexpr (kPack == 2) {
    if (UsesAmx() && kOrder == Order::kRowMajor) return AmxRows(words, a, b, n, c, accumulate);
    if (UsesAmx()) return AmxRowsOfColumns(words, a, b, n, c, accumulate);
  }
#endif
  for (int64_t r = 0; r < kTileRows; r += kRegisterRows) {
    const ConstRows rows = kOrder == Order::kRowMajor ? a.From(r * a.stride) : a.From(r);
    RegisterRows<kPack, kOrder>(words, rows, b, n, c.From(r * c.stride), accumulate);
  }
}

}  // namespace espalier::cpu
