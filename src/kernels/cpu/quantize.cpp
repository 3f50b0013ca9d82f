// Values in fp8 and their scales: the largest magnitudes first, then the values.
#include <algorithm>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/fp8.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

constexpr int64_t kTile = 64;  // rows and columns that are transposed at a time

/// The largest MagnitudeBits of each row of x.
std::vector<uint32_t> RowMaxima(const Bf16* x, int64_t rows, int64_t width) {
  std::vector<uint32_t> largest(static_cast<size_t>(rows));
  ParallelRanges(rows, RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      uint16_t most = 0;
      for (int64_t c = 0; c < width; ++c) most = std::max(most, static_cast<uint16_t>(MagnitudeBits(x[r * width + c])));
      largest[static_cast<size_t>(r)] = most;
    }
  });
  return largest;
}

/// The same for each column.
std::vector<uint32_t> ColumnMaxima(const Bf16* x, int64_t rows, int64_t width) {
  std::vector<uint32_t> largest(static_cast<size_t>(width));
  ParallelRanges(width, std::max(kTile, RowGrain(rows)), [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = begin; c < end; ++c)
        largest[static_cast<size_t>(c)] = std::max(largest[static_cast<size_t>(c)], MagnitudeBits(x[r * width + c]));
  });
  return largest;
}

std::vector<uint32_t> Maxima(const QuantizeArgs& a) {
  const Bf16* x = a.x.As<Bf16>();
  if (a.scale_of == ScaleOf::kRow && a.transposed) return ColumnMaxima(x, a.rows, a.width);
  std::vector<uint32_t> largest = RowMaxima(x, a.rows, a.width);
  if (a.scale_of == ScaleOf::kRow) return largest;
  const auto most = std::ranges::max_element(largest);
  return {most == largest.end() ? 0 : *most};
}

/// The factor of element (r, c) of x.
struct Factors {
  const float* inverse;
  int64_t per_row, per_column;
  float Of(int64_t r, int64_t c) const { return inverse[r * per_row + c * per_column]; }
};

template <Dtype kTo>
void Round(const QuantizeArgs& a, const Factors& factors) {
  const Bf16* x = a.x.As<Bf16>();
  uint8_t* y = a.y.As<uint8_t>();
  ParallelRanges(a.rows, RowGrain(a.width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = factors.Of(r, 0);
      for (int64_t c = 0; c < a.width; ++c) y[r * a.width + c] = ToFp8<kTo>(ToFloat(x[r * a.width + c]) * factor);
    }
  });
}

/// A tile is rounded in the order of x, and written in the order of y.
template <Dtype kTo>
void RoundTransposed(const QuantizeArgs& a, const Factors& factors) {
  const Bf16* x = a.x.As<Bf16>();
  uint8_t* y = a.y.As<uint8_t>();
  ParallelRanges(a.width, std::max(kTile, RowGrain(a.rows) / kTile * kTile), [=](int64_t begin, int64_t end) {
    uint8_t tile[kTile][kTile];
    for (int64_t column = begin; column < end; column += kTile) {
      const int64_t columns = std::min(kTile, end - column);
      for (int64_t row = 0; row < a.rows; row += kTile) {
        const int64_t rows = std::min(kTile, a.rows - row);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c)
            tile[r][c] = ToFp8<kTo>(ToFloat(x[(row + r) * a.width + column + c]) * factors.Of(row + r, column + c));
        for (int64_t c = 0; c < columns; ++c)
          for (int64_t r = 0; r < rows; ++r) y[(column + c) * a.rows + row + r] = tile[r][c];
      }
    }
  });
}

template <Dtype kTo>
void RoundTo(const QuantizeArgs& a, const Factors& factors) {
  if (a.transposed)
    RoundTransposed<kTo>(a, factors);
  else
    Round<kTo>(a, factors);
}

/// Rounds kScaleBlock elements, which are block `block` of row `line` of y.
template <Dtype kTo>
void RoundOne(const QuantizeArgs& a, const Bf16* x, int64_t line, int64_t block) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < kScaleBlock; ++i) largest = std::max(largest, static_cast<uint16_t>(MagnitudeBits(x[i])));
  const float scale = ScaleFor(kTo, largest), factor = InverseOf(scale);
  a.scales.As<uint8_t>()[BlockScaleAt(line, block, a.Depth())] = ToE8M0(scale);
  uint8_t* y = a.y.As<uint8_t>() + line * a.Depth() + block * kScaleBlock;
  for (int64_t i = 0; i < kScaleBlock; ++i) y[i] = ToFp8<kTo>(ToFloat(x[i]) * factor);
}

template <Dtype kTo>
void RoundRows(const QuantizeArgs& a) {
  ParallelRanges(a.rows, RowGrain(a.width), [&a](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t block = 0; block < a.width / kScaleBlock; ++block)
        RoundOne<kTo>(a, a.x.As<Bf16>() + r * a.width + block * kScaleBlock, r, block);
  });
}

/// A tile of kScaleBlock rows of x is turned, then rounded column by column.
template <Dtype kTo>
void RoundColumns(const QuantizeArgs& a) {
  ParallelRanges(a.width, std::max(kTile, RowGrain(a.rows) / kTile * kTile), [&a](int64_t begin, int64_t end) {
    Bf16 tile[kTile][kScaleBlock];
    for (int64_t column = begin; column < end; column += kTile) {
      const int64_t columns = std::min(kTile, end - column);
      for (int64_t block = 0; block < a.rows / kScaleBlock; ++block) {
        const Bf16* x = a.x.As<Bf16>() + block * kScaleBlock * a.width + column;
        for (int64_t r = 0; r < kScaleBlock; ++r)
          for (int64_t c = 0; c < columns; ++c) tile[c][r] = x[r * a.width + c];
        for (int64_t c = 0; c < columns; ++c) RoundOne<kTo>(a, tile[c], column + c, block);
      }
    }
  });
}

template <Dtype kTo>
void RoundInBlocks(const QuantizeArgs& a) {
  if (a.transposed)
    RoundColumns<kTo>(a);
  else
    RoundRows<kTo>(a);
}

void QuantizeInBlocks(const QuantizeArgs& a) {
  std::fill_n(a.scales.As<uint8_t>(), a.scale_bytes, uint8_t{0});
  if (a.y.dtype == Dtype::kF8E4M3)
    RoundInBlocks<Dtype::kF8E4M3>(a);
  else
    RoundInBlocks<Dtype::kF8E5M2>(a);
}

void QuantizeBlock(const QuantizeArgs& a) {
  if (a.scale_of == ScaleOf::kBlock) return QuantizeInBlocks(a);
  const std::vector<uint32_t> largest = Maxima(a);
  float* const scales = a.scales.As<float>();
  std::vector<float> inverse(largest.size());
  for (size_t i = 0; i < largest.size(); ++i) {
    scales[i] = ScaleFor(a.y.dtype, largest[i]);
    inverse[i] = InverseOf(scales[i]);
  }
  const bool of_rows = a.scale_of == ScaleOf::kRow;
  const Factors factors{inverse.data(), of_rows && !a.transposed, of_rows && a.transposed};
  if (a.y.dtype == Dtype::kF8E4M3)
    RoundTo<Dtype::kF8E4M3>(a, factors);
  else
    RoundTo<Dtype::kF8E5M2>(a, factors);
}

}  // namespace

void Quantize(const QuantizeArgs& a) {
  for (int64_t block = 0; block < a.blocks; ++block) {
    QuantizeArgs one = a.Block(block);
    if (a.expert_of_row != nullptr) one.rows = FilledRows({a.expert_of_row, a.rows, 0});
    QuantizeBlock(one);
  }
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
