// How the cuda kernels split long sums into partial sums, which they keep in the planned workspace. The memory plan and
// the kernels read the same formulas. The split depends on the extents alone, so the order of addition does, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

constexpr int64_t PartsOfSize(int64_t n, int64_t size, int64_t max_parts) {
  return std::clamp<int64_t>((n + size - 1) / size, 1, max_parts);
}

/// Partial sums over rows, for each column: enough blocks for a GPU, few enough that adding them up costs nothing.
constexpr int64_t ColumnSumParts(int64_t rows) { return PartsOfSize(rows, 64, 64); }
constexpr int64_t ColumnSumBytes(int64_t sums, int64_t rows, int64_t columns) {
  return sums * ColumnSumParts(rows) * columns * 4;
}

/// Rows of a part that are summed side by side, each a sum of its own, before these are added up.
constexpr int64_t kRowsBeside = 8;
/// The same partial sums where each row of a part that stands beside others is a block's of its own.
constexpr int64_t ColumnSumInPassBytes(int64_t sums, int64_t rows, int64_t columns) {
  return kRowsBeside * ColumnSumBytes(sums, rows, columns);
}

/// `attention_sink_grad` sums the products of o and dO for each column, then the columns of each head.
constexpr int64_t SinkGradBytes(int64_t rows, int64_t columns) {
  return ColumnSumBytes(1, rows, columns) + columns * 4;
}

/// Partial sums of squares, in fp64: few, since most tensors are small, and their sums follow one another.
constexpr int64_t SumSquaresParts(int64_t n) { return PartsOfSize(n, 4096, 1024); }
constexpr int64_t SumSquaresBytes(int64_t n) { return SumSquaresParts(n) * 8; }

/// Largest magnitudes of parts of a tensor.
constexpr int64_t MaximaParts(int64_t n) { return PartsOfSize(n, 8192, 1024); }
constexpr int64_t MaximaBytes(int64_t n) { return MaximaParts(n) * 4; }

/// Partial sums of the losses, of the count and, as a third, of the z-loss, in fp64.
constexpr int64_t TokenLossParts(int64_t tokens) { return PartsOfSize(tokens, 1024, 128); }
constexpr int64_t TokenLossBytes(int64_t tokens, int64_t sums) { return sums * TokenLossParts(tokens) * 8; }

/// The values that the launches of `clip` pass to one another: a scan over the squares of all tensors.
struct ClipSquares {
  double sum, first_not_finite;  ///< an index; -1: all are finite
};
constexpr int64_t kClipBytes = sizeof(ClipSquares);

}  // namespace espalier
