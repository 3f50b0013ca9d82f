// Every thread takes tiles of c. For each block of the contracted dim it widens and packs its rows of a (panels of 8)
// and its columns of b (panels of 48), the order in which the register tile reads them (Goto and van de Geijn 2008).
#include "widened_product.hpp"

#include "block_product.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace espalier::cpu {
namespace {

constexpr int64_t kDepth = 256;    // contracted elements of a block
constexpr int64_t kLargest = 288;  // rows and columns of a tile: packed operands and sums are 0.9 MiB
constexpr int64_t kSmallest = 96;
constexpr int kVectors = 3;
constexpr int64_t kPanel = kVectors * kLanes;  // columns of a panel of b

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

/// One operand: element (i, p) at data[i * row + p * depth], i along the kept dim, p along the contracted one.
struct Operand {
  const Bf16* data;
  int64_t row, depth;
};

/// Widens rows [i, i + 16) at depths [p, p + 16) into to[p * ld + i]; what lies outside `rows` and `depths` is 0.
void WidenBlock(const Operand& x, int64_t rows, int64_t depths, float* to, int64_t ld) {
  F16 block[kLanes] = {};
  if (x.row == 1) {
    for (int64_t p = 0; p < depths; ++p) {
      const Bf16* from = x.data + p * x.depth;
      block[p] = rows >= kLanes ? Load(from) : Load(from, rows);
    }
  } else {
    for (int64_t i = 0; i < std::min(rows, kLanes); ++i) {
      const Bf16* from = x.data + i * x.row;
      block[i] = depths >= kLanes ? Load(from) : Load(from, depths);
    }
    Transpose(block);
  }
  for (int64_t p = 0; p < depths; ++p) Store(to + p * ld, block[p]);
}

/// Packs `rows` rows at `depths` depths into panels of kRows rows: row i, depth p at
/// to[(i / kRows) * kRows * kDepth + p * kRows + i % kRows], padded with zeros to whole panels.
template <int64_t kRows>
void PackPanels(const Operand& x, int64_t rows, int64_t depths, float* to) {
  for (int64_t i = 0; i < RoundUp(rows, std::max(kRows, kLanes)); i += kLanes) {
    for (int64_t p = 0; p < depths; p += kLanes) {
      const Operand at{x.data + i * x.row + p * x.depth, x.row, x.depth};
      const int64_t deep = std::min(kLanes, depths - p), high = std::max<int64_t>(rows - i, 0);
      if constexpr (kRows % kLanes == 0) {
        WidenBlock(at, high, deep, to + i / kRows * kRows * kDepth + p * kRows + i % kRows, kRows);
      } else {
        float block[kLanes * kLanes];
        WidenBlock(at, high, deep, block, kLanes);
        for (int64_t half = 0; half < kLanes; half += kRows) {
          float* target = to + (i + half) * kDepth + p * kRows;
          for (int64_t d = 0; d < deep; ++d)
            std::memcpy(target + d * kRows, block + d * kLanes + half, kRows * sizeof(float));
        }
      }
    }
  }
}

struct Tile {
  int64_t row, rows, column, columns;
};

/// Moves a tile between c and its fp32 sums (rows of `ld`).
void LoadTile(const Tensor& c, int64_t n, const Tile& t, float* sums, int64_t ld) {
  for (int64_t i = 0; i < t.rows; ++i) {
    const float* from = c.As<float>() + (t.row + i) * n + t.column;
    std::memcpy(sums + i * ld, from, static_cast<size_t>(t.columns) * sizeof(float));
  }
}

template <typename T>
void StoreTile(const float* sums, int64_t ld, const Tile& t, int64_t n, T* c) {
  for (int64_t i = 0; i < t.rows; ++i) {
    T* to = c + (t.row + i) * n + t.column;
    ForLanes(0, t.columns, [&](int64_t j, auto lanes) { Store(to + j, Load(sums + i * ld + j, lanes), lanes); });
  }
}

void MultiplyTile(const ProductShape& s, const Bf16* a, const Bf16* b, const Tensor& c, bool accumulate,
                  const Tile& t) {
  const int64_t rows = RoundUp(t.rows, kLanes), columns = RoundUp(t.columns, kPanel);
  float* packed_a = ScratchOf<float>((rows + columns) * kDepth + rows * columns);
  float* packed_b = packed_a + rows * kDepth;
  float* sums = packed_b + columns * kDepth;
  if (accumulate) {
    LoadTile(c, s.n, t, sums, columns);
  } else {
    std::fill_n(sums, rows * columns, 0.0f);
  }
  for (int64_t p = 0; p < s.k; p += kDepth) {
    const int64_t depth = std::min(kDepth, s.k - p);
    PackPanels<kTileRows>({a + t.row * s.a_row + p * s.a_column, s.a_row, s.a_column}, t.rows, depth, packed_a);
    PackPanels<kPanel>({b + p * s.b_row + t.column * s.b_column, s.b_column, s.b_row}, t.columns, depth, packed_b);
    for (int64_t j = 0; j < columns; j += kPanel) {
      for (int64_t i = 0; i < t.rows; i += kTileRows) {
        RegisterTile<1, Order::kColumnMajor, kVectors>(depth, packed_a + i * kDepth, kTileRows, packed_b + j * kDepth,
                                                       kPanel, sums + i * columns + j, columns, true);
      }
    }
  }
  if (c.dtype == Dtype::kF32) {
    StoreTile(sums, columns, t, s.n, c.As<float>());
  } else {
    StoreTile(sums, columns, t, s.n, c.As<Bf16>());
  }
}

/// Extents of tiles: as large as the cache allows, yet at least three a thread.
struct Tiling {
  int64_t rows, columns, row_count, column_count;
  Tiling(int64_t m, int64_t n, int64_t largest)
      : rows(RoundUp(CeilDiv(m, CeilDiv(m, largest)), kLanes)),
        columns(RoundUp(CeilDiv(n, CeilDiv(n, largest)), kPanel)),
        row_count(CeilDiv(m, rows)),
        column_count(CeilDiv(n, columns)) {}
};

Tiling TilingOf(const ProductShape& s) {
  int64_t largest = kLargest;
  while (largest > kSmallest && CeilDiv(s.m, largest) * CeilDiv(s.n, largest) < 3 * Threads()) largest -= kPanel;
  return {s.m, s.n, largest};
}

}  // namespace

void WidenedProduct(const ProductShape& shape, const Bf16* a, const Bf16* b, const Tensor& c, bool accumulate) {
  if (shape.m * shape.n == 0) return;
  const Tiling tiling = TilingOf(shape);
  ParallelTasks(tiling.row_count * tiling.column_count, [&](int64_t task) {
    const int64_t row = task % tiling.row_count * tiling.rows, column = task / tiling.row_count * tiling.columns;
    MultiplyTile(shape, a, b, c, accumulate,
                 {row, std::min(tiling.rows, shape.m - row), column, std::min(tiling.columns, shape.n - column)});
  });
}

}  // namespace espalier::cpu
