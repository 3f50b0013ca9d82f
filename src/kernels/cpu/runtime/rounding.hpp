// Stochastic rounding to bf16 in sixteen lanes (kernels/stochastic_rounding.hpp).
#pragma once

#include <algorithm>

#include "kernels/stochastic_rounding.hpp"
#include "vector.hpp"

namespace espalier::cpu {

/// Elements whose random words a thread makes at a time.
inline constexpr int64_t kRoundedAtATime = 1024;

#ifdef __AVX512F__
/// Halves of the products of sixteen numbers with one. GCC 12 makes slow multiplications of 64 bits of a plain loop.
struct Products {
  U16 high, low;
};
inline Products ProductsOf(U16 x, uint32_t factor) {
  const __m512i v = std::bit_cast<__m512i>(x), f = _mm512_set1_epi32(static_cast<int>(factor));
  const __m512i even = _mm512_mul_epu32(v, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), f);
  constexpr __mmask16 kEven = 0x5555, kOdd = 0xaaaa;
  return {std::bit_cast<U16>(_mm512_mask_shuffle_epi32(odd, kEven, even, _MM_PERM_DDBB)),
          std::bit_cast<U16>(_mm512_mask_shuffle_epi32(even, kOdd, odd, _MM_PERM_CCAA))};
}

/// TenRounds of sixteen adjacent blocks; word j of block i is words[j][i].
inline void SixteenRounds(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t (&words)[4][kLanes]) {
  const U16 zeros{};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  U16 x0 = std::bit_cast<U16>(kLaneIndex) + static_cast<uint32_t>(block), x1 = zeros + static_cast<uint32_t>(row),
      x2 = zeros + step, x3 = zeros;
  for (int round = 0; round < 10; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1) {
    const Products p0 = ProductsOf(x0, kPhiloxFactor0), p1 = ProductsOf(x2, kPhiloxFactor1);
    x0 = p1.high ^ x1 ^ k0;
    x1 = p1.low;
    x2 = p0.high ^ x3 ^ k1;
    x3 = p0.low;
  }
  std::memcpy(words[0], &x0, sizeof x0);
  std::memcpy(words[1], &x1, sizeof x1);
  std::memcpy(words[2], &x2, sizeof x2);
  std::memcpy(words[3], &x3, sizeof x3);
}
#else
inline void SixteenRounds(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t (&words)[4][kLanes]) {
  for (int64_t i = 0; i < kLanes; ++i) {
    const PhiloxWords w = RoundingBlock(key, row, block + i, step);
    words[0][i] = w.x0;
    words[1][i] = w.x1;
    words[2][i] = w.x2;
    words[3][i] = w.x3;
  }
}
#endif

/// The words of sixteen adjacent blocks, in the order of elements.
inline void SixteenBlocks(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t* words) {
  alignas(64) uint32_t of_block[4][kLanes];
  SixteenRounds(key, row, block, step, of_block);
  for (int64_t i = 0; i < kLanes; ++i)
    for (int64_t j = 0; j < 4; ++j) words[4 * i + j] = of_block[j][i];
}

/// The words of columns [begin, end) of a row of a parameter.
inline void WordsOfRow(uint64_t key, int64_t row, int64_t begin, int64_t end, uint32_t step, uint32_t* words) {
  constexpr int64_t kColumns = 4 * kLanes;
  for (int64_t column = begin; column < end;) {
    if (column % 4 == 0 && end - column >= kColumns) {
      SixteenBlocks(key, row, column / 4, step, words + (column - begin));
      column += kColumns;
      continue;
    }
    alignas(64) uint32_t some[kColumns];
    SixteenBlocks(key, row, column / 4, step, some);
    const int64_t skip = column % 4, count = std::min(kColumns - skip, end - column);
    std::copy_n(some + skip, count, words + (column - begin));
    column += count;
  }
}

/// The words of elements [begin, end) of a shard.
inline void RoundingWords(const RoundingStream& s, uint32_t step, int64_t begin, int64_t end, uint32_t* words) {
  for (int64_t i = begin; i < end;) {
    const int64_t row = i / s.columns, of_row = i - row * s.columns, count = std::min(s.columns - of_row, end - i);
    WordsOfRow(s.key, s.row + row, s.column + of_row, s.column + of_row + count, step, words + (i - begin));
    i += count;
  }
}

/// Calls f(i, lanes, words) for elements [begin, end) of a shard, sixteen at a time, with the words of each.
template <typename F>
void ForRoundedLanes(const RoundingStream& s, uint32_t step, int64_t begin, int64_t end, F f) {
  alignas(64) uint32_t words[kRoundedAtATime];
  for (int64_t at = begin; at < end; at += kRoundedAtATime) {
    const int64_t to = std::min(end, at + kRoundedAtATime);
    RoundingWords(s, step, at, to, words);
    ForLanes(at, to, [&](int64_t i, auto lanes) {
      U16 of_lanes{};
      std::memcpy(&of_lanes, words + (i - at), static_cast<size_t>(lanes) * sizeof(uint32_t));
      f(i, lanes, of_lanes);
    });
  }
}

/// Stores moment 0 or 1, rounded by its bits of each word.
template <typename Lanes>
void StoreRounded(Bf16* p, F16 x, U16 words, int moment, Lanes lanes) {
  const U16 u = std::bit_cast<U16>(x), bits = moment == 0 ? words & 0xffffu : words >> 16;
  const U16 rounded = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + bits) >> 16;
  const H16 h = LowHalves(rounded);
  std::memcpy(static_cast<void*>(p), &h, static_cast<size_t>(lanes) * sizeof(Bf16));
}

}  // namespace espalier::cpu
