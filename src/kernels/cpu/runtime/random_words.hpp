// Random words, vector by vector (kernels/random_words.hpp).
#pragma once

#include <algorithm>

#include "kernels/random_words.hpp"
#include "vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Elements whose random words a thread computes at a time.
inline constexpr int64_t kWordsAtATime = 1024;

/// Blocks of Philox4x32, one per lane.
struct PhiloxLanes {
  Words x0, x1, x2, x3;
};

/// TenRounds of each lane.
inline PhiloxLanes TenRounds(PhiloxLanes c, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1) {
    const Products p0 = ProductsOf(c.x0, kPhiloxFactor0), p1 = ProductsOf(c.x2, kPhiloxFactor1);
    c = {p1.high ^ c.x1 ^ k0, p1.low, p0.high ^ c.x3 ^ k1, p0.low};
  }
  return c;
}

inline Words BroadcastWord(int64_t x) { return Words{} + static_cast<uint32_t>(x); }

/// The words of kLanes adjacent blocks, in the order of elements.
inline void WordsOfBlocks(uint64_t key, int64_t row, int64_t block, uint32_t step, uint32_t* words) {
  const PhiloxLanes rounds = TenRounds(PhiloxLanes{std::bit_cast<Words>(kLaneIndex) + BroadcastWord(block),
                                                   BroadcastWord(row), BroadcastWord(step), Words{}},
                                       key);
  alignas(64) uint32_t of_block[4][kLanes];
  std::memcpy(of_block, &rounds, sizeof rounds);
  for (int64_t i = 0; i < kLanes; ++i)
    for (int64_t j = 0; j < 4; ++j) words[4 * i + j] = of_block[j][i];
}

/// Computes the words of columns [begin, end) of a row.
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
inline void RandomWords(const WordStream& s, uint32_t step, int64_t begin, int64_t end, uint32_t* words) {
  for (int64_t i = begin; i < end;) {
    const int64_t row = i / s.columns, of_row = i - row * s.columns, count = std::min(s.columns - of_row, end - i);
    WordsOfRow(s.key, RowOf(s, row), s.column + of_row, s.column + of_row + count, step, words + (i - begin));
    i += count;
  }
}

/// Calls f(i, lanes, words) for elements [begin, end) of a shard, a vector at a time, with the words of each.
template <typename F>
void ForRandomLanes(const WordStream& s, uint32_t step, int64_t begin, int64_t end, F f) {
  alignas(64) uint32_t words[kWordsAtATime];
  for (int64_t at = begin; at < end; at += kWordsAtATime) {
    const int64_t to = std::min(end, at + kWordsAtATime);
    RandomWords(s, step, at, to, words);
    ForLanes(at, to, [&](int64_t i, auto lanes) {
      Words of_lanes{};
      std::memcpy(&of_lanes, words + (i - at), static_cast<size_t>(lanes) * sizeof(uint32_t));
      f(i, lanes, of_lanes);
    });
  }
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
