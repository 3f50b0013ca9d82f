// Random words by place: a pure function of key, element and step, so they are the same in any layout and after a
// restart (doc/numerics.md). Elements are rows and columns of a whole tensor. Element (row, column) has word column % 4
// of the Philox4x32-10 block with counter (column / 4, row, step, plane).
#pragma once

#include <cstdint>

#include "espalier/util/philox.hpp"
#include "kernels/host_device.hpp"

namespace espalier {

/// The source of a tensor's words: a shard of `columns` columns, starting at an element of the whole tensor. A vector
/// is one row. Matrices that follow one another, such as the experts' weights, count their rows from 2^16 times their
/// number on.
struct WordStream {
  uint64_t key;
  int64_t row, column;  ///< place of the shard's first element in the whole tensor; row < 2^32, column < 2^34
  int64_t columns;      ///< columns of the shard
  int64_t rows = 0;     ///< rows of each matrix of the shard; 0: it is one matrix
};

inline constexpr int64_t kRowsOfMatrix = int64_t{1} << 16;

/// The number of the shard's row `row` in the whole tensor.
ESPALIER_HOST_DEVICE inline int64_t RowOf(const WordStream& s, int64_t row) {
  return s.row + (s.rows == 0 ? row : row / s.rows * kRowsOfMatrix + row % s.rows);
}

/// The words of elements (row, 4 block) to (row, 4 block + 3).
ESPALIER_HOST_DEVICE inline PhiloxWords RandomBlock(uint64_t key, int64_t row, int64_t block, uint32_t step,
                                                    int64_t plane = 0) {
  return TenRounds({static_cast<uint32_t>(block), static_cast<uint32_t>(row), step, static_cast<uint32_t>(plane)},
                   static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

ESPALIER_HOST_DEVICE inline uint32_t WordOf(const PhiloxWords& block, int64_t column) {
  switch (column % 4) {
    case 0:
      return block.x0;
    case 1:
      return block.x1;
    case 2:
      return block.x2;
    default:
      return block.x3;
  }
}

/// The word of element i of a shard.
ESPALIER_HOST_DEVICE inline uint32_t RandomWord(const WordStream& s, uint32_t step, int64_t i) {
  const int64_t row = RowOf(s, i / s.columns), column = s.column + i % s.columns;
  return WordOf(RandomBlock(s.key, row, column / 4, step), column);
}

}  // namespace espalier
