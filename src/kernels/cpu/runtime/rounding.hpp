// Stochastic rounding to bf16, vector by vector (kernels/stochastic_rounding.hpp).
#pragma once

#include <algorithm>

#include "kernels/stochastic_rounding.hpp"
#include "vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Elements whose random words a thread makes at a time.
inline constexpr int64_t kRoundedAtATime = 1024;

/// TenRounds of kLanes adjacent blocks; word j of block i is words[j][i].
inline void BlockRounds(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t (&words)[4][kLanes]) {
  const Words zeros{};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Words x0 = std::bit_cast<Words>(kLaneIndex) + static_cast<uint32_t>(block), x1 = zeros + static_cast<uint32_t>(row),
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

/// The words of kLanes adjacent blocks, in the order of elements.
inline void WordsOfBlocks(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t* words) {
  alignas(64) uint32_t of_block[4][kLanes];
  BlockRounds(key, row, block, step, of_block);
  for (int64_t i = 0; i < kLanes; ++i)
    for (int64_t j = 0; j < 4; ++j) words[4 * i + j] = of_block[j][i];
}

/// The words of columns [begin, end) of a row of a parameter.
inline void WordsOfRow(uint64_t key, int64_t row, int64_t begin, int64_t end, uint32_t step, uint32_t* words) {
  constexpr int64_t kColumns = 4 * kLanes;
  for (int64_t column = begin; column < end;) {
    if (column % 4 == 0 && end - column >= kColumns) {
      WordsOfBlocks(key, row, column / 4, step, words + (column - begin));
      column += kColumns;
      continue;
    }
    alignas(64) uint32_t some[kColumns];
    WordsOfBlocks(key, row, column / 4, step, some);
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

/// Calls f(i, lanes, words) for elements [begin, end) of a shard, a vector at a time, with the words of each.
template <typename F>
void ForRoundedLanes(const RoundingStream& s, uint32_t step, int64_t begin, int64_t end, F f) {
  alignas(64) uint32_t words[kRoundedAtATime];
  for (int64_t at = begin; at < end; at += kRoundedAtATime) {
    const int64_t to = std::min(end, at + kRoundedAtATime);
    RoundingWords(s, step, at, to, words);
    ForLanes(at, to, [&](int64_t i, auto lanes) {
      Words of_lanes{};
      std::memcpy(&of_lanes, words + (i - at), static_cast<size_t>(lanes) * sizeof(uint32_t));
      f(i, lanes, of_lanes);
    });
  }
}

/// Stores moment 0 or 1, rounded by its bits of each word.
template <typename Lanes>
void StoreRounded(Bf16* p, Floats x, Words words, int moment, Lanes lanes) {
  const Words u = std::bit_cast<Words>(x), bits = moment == 0 ? words & 0xffffu : words >> 16;
  const Words rounded = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + bits) >> 16;
  const Halves h = Shortened(rounded);
  std::memcpy(static_cast<void*>(p), &h, static_cast<size_t>(lanes) * sizeof(Bf16));
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
