// Loops as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008). From the outside to
// the inside:
//
//   each thread computes a cell of c, and packs the panels of a and b that it needs;
//   of both, a block of the contracted dim is packed at a time;
//   b is packed in blocks for the last-level cache, a in blocks for the second-level cache;
//   a panel of b is multiplied by the block's panels of a, one by one;
//   a tile of c is summed in registers.
//
// So an element is one chain of multiply-adds per block of the contracted dim, and the chains are added in order. The
// blocks follow from the length of that dim. Tiles at the edges of c do the same with fewer rows and vectors, and so
// does few_rows.hpp, without packing b, where all of c has few rows.
#include "panel_gemm.hpp"

#include <algorithm>
#include <array>

#include "cell.hpp"
#include "espalier/util/error.hpp"
#include "few_rows.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

// A tile of c. Its sums, a row of b and an element of a fill the registers: enough sums to hide the latency of two
// multiply-adds per cycle, and fewer loads than multiply-adds.
constexpr int64_t kRows = kRegisters == 32 ? (kLanes == 16 ? 14 : 8) : (kLanes == 8 ? 6 : 4);
constexpr int64_t kVectors = kRegisters == 32 && kLanes == 4 ? 3 : 2;
constexpr int64_t kColumns = kVectors * kLanes;
constexpr int64_t kSums = kRows * kColumns;

constexpr int64_t kDepth = 1024;                                  // words of a block, at most
constexpr int64_t kLeftBlock = (kLanes == 16 ? 128 : 64) * 1024;  // words: half of a second-level cache
constexpr int64_t kRightBlock = 2048 * 1024;
constexpr int64_t kKeptSums = 2048 * 2048;  // limit for a thread

constexpr int64_t kLine = 64;  // bytes
constexpr int64_t kLineWords = kLine / static_cast<int64_t>(sizeof(float));

/// The lines to fetch into the caches while a tile is summed: the lines of c that receive the sums, then some of b's
/// next panel.
struct Ahead {
  const std::byte* c;
  int64_t c_stride, c_bytes;  ///< stride and bytes of a row
  int64_t c_rows;
  const float* right;
  int64_t right_lines;
};

/// Fetches the share of one step: a row of c, or a line of b.
inline void Fetch(Ahead& ahead) {
  if (ahead.c_rows > 0) {
    for (int64_t at = 0; at < ahead.c_bytes; at += kLine) __builtin_prefetch(ahead.c + at, 1);
    ahead.c += ahead.c_stride;
    --ahead.c_rows;
  } else if (ahead.right_lines > 0) {
    __builtin_prefetch(ahead.right, 0, 2);
    ahead.right += kLineWords;
    --ahead.right_lines;
  }
}

/// to[kUsedRows][kLanes kUsedVectors] (+)= a panel of a times one of b.
template <int kPack, int kUsedRows, int kUsedVectors>
void MultiplyPanels(const float* a, const float* b, int64_t words, Rows to, bool add, Ahead& ahead) {
  constexpr int64_t kStep = 4;  // words
  Floats sums[kUsedRows][kUsedVectors] = {};
  for (int64_t left = words; left > 0; left -= kStep) {
    Fetch(ahead);
    const int64_t step = std::min(left, kStep);
#pragma GCC unroll 4
    for (int64_t p = 0; p < step; ++p, a += kRows, b += kColumns) {
      Floats row[kUsedVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kUsedVectors; ++v) row[v] = Load(b + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kUsedRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kUsedVectors; ++v) sums[r][v] = MultiplyAdd<kPack>(sums[r][v], a[r], row[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kUsedRows; ++r) {
    float* row = to.data + r * to.stride;
#pragma GCC unroll 4
    for (int v = 0; v < kUsedVectors; ++v)
      Store(row + v * kLanes, add ? Load(row + v * kLanes) + sums[r][v] : sums[r][v]);
  }
}

using Tile = void (*)(const float*, const float*, int64_t, Rows, bool, Ahead&);

template <int kPack, int... kIndex>
constexpr std::array<Tile, kRows * kVectors> TilesOf(std::integer_sequence<int, kIndex...>) {
  return {&MultiplyPanels<kPack, kIndex / kVectors + 1, kIndex % kVectors + 1>...};
}

template <int kPack>
Tile TileOf(int64_t rows, int64_t vectors) {
  static constexpr auto kTiles = TilesOf<kPack>(std::make_integer_sequence<int, kRows * kVectors>());
  return kTiles[static_cast<size_t>((rows - 1) * kVectors + vectors - 1)];
}

/// One GEMM. Rows and columns count in panels, depths in elements.
template <typename T, int kPack>
class Blocks {
 public:
  explicit Blocks(const MatmulArgs& x)
      : s_(x.gemm.shape),
        a_{x.a.As<T>(), s_.m, s_.k, s_.a_row, s_.a_column},
        b_{x.b.As<T>(), s_.n, s_.k, s_.b_column, s_.b_row},
        c_(x.c),
        bias_(x.bias),
        accumulate_(x.gemm.accumulate),
        depth_(Parts(Parts(s_.k, Parts(s_.k, kDepth * kPack)), kMultiple) * kMultiple),
        keeps_sums_(x.c.dtype == Dtype::kBf16 && depth_ < s_.k) {
    for (const PanelSource<T>* source : {&a_, &b_})
      CHECK(source->row == 1 || source->depth == 1, "neither dim of an operand is dense: strides {} and {}",
            source->row, source->depth);
    CHECK(c_.dtype == Dtype::kF32 || !accumulate_, "bf16 does not accumulate");
  }

  void Run() const {
    if (s_.m <= kFewRows) return RunFewRows(std::make_integer_sequence<int, kFewRows>());
    constexpr int64_t kWorth = 512 * 1024;  // multiply-adds that are worth waking a thread
    const Grid grid{Parts(s_.m, kRows), Parts(s_.n, kColumns), kRows, kColumns, 2 * kLanes};
    const auto threads = static_cast<int>(std::clamp<int64_t>(s_.m * s_.n * s_.k / kWorth, 1, Threads()));
#pragma omp parallel num_threads(threads) if (threads > 1)
    RunCell(CellOf(grid, omp_get_thread_num(), omp_get_num_threads()));
  }

 private:
  static constexpr int64_t kMultiple = 16 * kPack;  // multiple of the elements in each block except the last

  /// A block of the contracted dim, over a cell of c.
  struct Slice {
    Cell cell;
    int64_t depth, words;
    bool begins, ends;  ///< the contracted dim
    float* sums;        ///< scratch: sums of all tiles, column by column, if they are kept, otherwise of one tile
    int64_t LeftSize() const { return PanelSize(kRows, words); }
    int64_t RightSize() const { return PanelSize(kColumns, words); }
  };

  /// A tile of c, and scratch for its sums.
  struct Target {
    int64_t row, column;  ///< indices of the first element
    int64_t rows, columns;
    float* sums;
  };

  void RunCell(const Cell& cell) const {
    if (cell.Rows() * cell.Columns() == 0) return;
    const int64_t columns = keeps_sums_ ? std::min(cell.Columns(), kKeptSums / kSums) : cell.Columns(),
                  rows = keeps_sums_ ? std::min(cell.Rows(), kKeptSums / (kSums * columns)) : cell.Rows();
    float* sums = ScratchOf<float>(keeps_sums_ ? rows * columns * kSums : kSums, ScratchUse::kSums);
    for (int64_t row = cell.row_begin; row < cell.row_end; row += rows)
      for (int64_t column = cell.column_begin; column < cell.column_end; column += columns)
        for (int64_t depth = 0; depth < s_.k; depth += depth_)
          RunSlice({{row, std::min(cell.row_end, row + rows), column, std::min(cell.column_end, column + columns)},
                    depth,
                    Parts(std::min(depth_, s_.k - depth), kPack),
                    depth == 0,
                    depth + depth_ >= s_.k,
                    sums});
  }

  void RunSlice(const Slice& slice) const {
    const Cell& cell = slice.cell;
    const int64_t rows = std::clamp<int64_t>(kLeftBlock / slice.LeftSize(), 1, cell.Rows());
    const bool at_once = rows == cell.Rows();  // then each panel of b is read only once
    const int64_t columns =
        std::clamp<int64_t>((at_once ? kLeftBlock : kRightBlock) / slice.RightSize(), 1, cell.Columns());
    float* left = ScratchOf<float>(rows * slice.LeftSize(), ScratchUse::kPanels);
    float* right = ScratchOf<float>(columns * slice.RightSize());
    for (int64_t column = cell.column_begin; column < cell.column_end; column += columns) {
      const int64_t column_end = std::min(cell.column_end, column + columns);
      PackPanels<kPack, kColumns>(b_, column, column_end, slice.depth, slice.words, right);
      for (int64_t row = cell.row_begin; row < cell.row_end; row += rows) {
        const int64_t row_end = std::min(cell.row_end, row + rows);
        if (!at_once || column == cell.column_begin)
          PackPanels<kPack, kRows>(a_, row, row_end, slice.depth, slice.words, left);
        RunBlock(slice, {row, row_end, column, column_end}, left, right);
      }
    }
  }

  void RunBlock(const Slice& slice, const Cell& block, const float* left, const float* right) const {
    const Cell& cell = slice.cell;
    // Each panel of a fetches its share of b's next panel.
    const int64_t share = Parts(slice.RightSize() / kLineWords, block.Rows());
    for (int64_t j = block.column_begin; j < block.column_end; ++j, right += slice.RightSize()) {
      const float *a = left, *next = right + slice.RightSize();
      for (int64_t i = block.row_begin; i < block.row_end; ++i) {
        const int64_t tile = keeps_sums_ ? (j - cell.column_begin) * cell.Rows() + i - cell.row_begin : 0;
        const Target target{i * kRows, j * kColumns, std::min(kRows, s_.m - i * kRows),
                            std::min(kColumns, s_.n - j * kColumns), slice.sums + tile * kSums};
        const int64_t lines = j + 1 < block.column_end ? share : 0;
        Multiply(slice, target, a, right, next, lines);
        a += slice.LeftSize();
        next += share * kLineWords;
      }
    }
  }

  /// Computes the sums of a tile. They are stored directly in c if they need no further work there.
  void Multiply(const Slice& slice, const Target& t, const float* a, const float* b, const float* next,
                int64_t next_lines) const {
    const bool in_f32 = c_.dtype == Dtype::kF32, adds_to_c = in_f32 && (accumulate_ || !slice.begins),
               in_place = in_f32 && t.columns % kLanes == 0 && !(slice.ends && bias_);
    const int64_t element = SizeOf(c_.dtype), at = t.row * s_.c_row + t.column;
    Ahead ahead{static_cast<const std::byte*>(c_.data) + at * element,
                s_.c_row * element,
                t.columns * element,
                in_f32 || slice.ends ? t.rows : 0,
                next,
                next_lines};
    const Tile tile = TileOf<kPack>(t.rows, Parts(t.columns, kLanes));
    if (in_place) return tile(a, b, slice.words, {c_.As<float>() + at, s_.c_row}, adds_to_c, ahead);
    tile(a, b, slice.words, {t.sums, kColumns}, keeps_sums_ && !slice.begins, ahead);
    if (keeps_sums_ && !slice.ends) return;
    for (int64_t r = 0; r < t.rows; ++r)
      in_f32 ? Finish(slice, t, r, c_.As<float>() + at + r * s_.c_row, adds_to_c)
             : Finish(slice, t, r, c_.As<Bf16>() + at + r * s_.c_row, false);
  }

  /// Finishes row r of a tile: the old value if it accumulates, plus sums, plus the bias after the last sum.
  template <typename C>
  void Finish(const Slice& slice, const Target& t, int64_t r, C* to, bool add) const {
    const float* from = t.sums + r * kColumns;
    const C* bias = slice.ends && bias_ ? bias_.As<C>() + t.column : nullptr;
    ForLanes(0, t.columns, [&](int64_t x, auto lanes) {
      Floats sum = Load(from + x);
      if (add) sum = Load(to + x, lanes) + sum;
      if (bias != nullptr) sum += Load(bias + x, lanes);
      Store(to + x, sum, lanes);
    });
  }

  template <int... kIndex>
  void RunFewRows(std::integer_sequence<int, kIndex...>) const {
    ((s_.m == kIndex + 1 ? RunRows<kIndex + 1>() : void()), ...);
  }

  /// All of c, which has kUsedRows rows.
  template <int kUsedRows>
  void RunRows() const {
    constexpr int64_t kUnit = 2 * kLanes, kWorth = 128 * 1024;  // elements of b that are worth waking a thread
    const int64_t words = Parts(s_.k, kPack);
    float* a = ScratchOf<float>(PanelSize(kFewRows, words), ScratchUse::kPanels);
    PackPanels<kPack, kFewRows>(a_, 0, 1, 0, words, a);
    ParallelRanges(s_.n, Parts(kWorth, s_.k * kUnit) * kUnit, [&](int64_t begin, int64_t end) {
      constexpr int64_t kColumnsAtATime = 2048;  // their sums fit into the first-level cache
      for (int64_t column = begin; column < end; column += kColumnsAtATime)
        RunColumns<kUsedRows>(a, column, std::min(end, column + kColumnsAtATime));
    });
  }

  template <int kUsedRows>
  void RunColumns(const float* a, int64_t begin, int64_t end) const {
    const int64_t stride = Parts(end - begin, kLanes) * kLanes;
    float* sums = ScratchOf<float>(2 * kUsedRows * stride, ScratchUse::kSums);
    float* total = sums + kUsedRows * stride;
    for (int64_t depth = 0; depth < s_.k; depth += depth_) {
      SumFewRows<kPack, kUsedRows>(b_, depth, Parts(std::min(depth_, s_.k - depth), kPack),
                                   a + depth / kPack * kFewRows, {begin, end, {sums, stride}});
      ForElementType(c_.dtype, [&]<typename C>(C) {
        for (int64_t r = 0; r < kUsedRows; ++r)
          FinishColumns(depth, begin, end, sums + r * stride, total + r * stride, c_.As<C>() + r * s_.c_row);
      });
    }
  }

  /// Finishes columns [begin, end) of a row of c: the old value if it accumulates, plus the sums of a block of the
  /// contracted dim, plus the bias after the last block.
  template <typename C>
  void FinishColumns(int64_t depth, int64_t begin, int64_t end, const float* sums, float* total, C* to) const {
    const bool begins = depth == 0, ends = depth + depth_ >= s_.k, adds_bias = ends && bias_;
    ForLanes(begin, end, [&](int64_t x, auto lanes) {
      Floats sum = Load(sums + x - begin);
      if (!begins) sum = Load(total + x - begin) + sum;
      if (begins && accumulate_) sum = Load(to + x, lanes) + sum;
      if (adds_bias) sum += Load(bias_.As<C>() + x, lanes);
      ends ? Store(to + x, sum, lanes) : Store(total + x - begin, sum);
    });
  }

  const GemmShape s_;
  const PanelSource<T> a_, b_;
  const Array c_, bias_;
  const bool accumulate_;
  const int64_t depth_;    ///< elements of a block of the contracted dim
  const bool keeps_sums_;  ///< kept between blocks, in scratch memory, because c is bf16
};

}  // namespace

void PanelGemm(const MatmulArgs& x) {
  if (x.a.dtype == Dtype::kF32) return Blocks<float, 1>(x).Run();
  Blocks<Bf16, kHasBf16Dot ? 2 : 1>(x).Run();
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
