// How the cuda kernels cut long sums into parts that lie in the planned workspace: read by the ops' formulas and by the
// kernels. Cuts depend on extents alone, so an order of addition does, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

constexpr int64_t PartsOfSize(int64_t n, int64_t size, int64_t most) {
  return std::clamp<int64_t>((n + size - 1) / size, 1, most);
}

/// Parts of sums over rows, one of each column: enough blocks for a GPU, few enough that adding them up is nothing.
constexpr int64_t ColumnSumParts(int64_t rows) { return PartsOfSize(rows, 64, 64); }
constexpr int64_t ColumnSumBytes(int64_t sums, int64_t rows, int64_t columns) {
  return sums * ColumnSumParts(rows) * columns * 4;
}

/// Parts of a sum of squares, in fp64: small, since most tensors are, and their sums come one after the other.
constexpr int64_t SumSquaresParts(int64_t n) { return PartsOfSize(n, 4096, 1024); }
constexpr int64_t SumSquaresBytes(int64_t n) { return SumSquaresParts(n) * 8; }

/// Parts of a sum of losses and of a count, in fp64.
constexpr int64_t TokenLossParts(int64_t tokens) { return PartsOfSize(tokens, 1024, 128); }
constexpr int64_t TokenLossBytes(int64_t tokens) { return 2 * TokenLossParts(tokens) * 8; }

/// What `clip` finds in the squares of all tensors, between the launches that it takes.
struct ClipSquares {
  double sum, first_not_finite;  ///< an index; -1: all are finite
};
constexpr int64_t kClipBytes = sizeof(ClipSquares);

}  // namespace espalier
