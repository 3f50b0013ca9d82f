// Loops as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with tiles for
// registers. From the outside to the inside:
//
//   each thread computes a cell of c, and packs the panels of a and b that it needs;
//   b is packed in blocks for the last-level cache, a in blocks for the second-level cache;
//   a panel of b passes the block's panels of a, two at a time;
//   the first-level cache holds a chunk of the contracted dim of these three panels, and the sums.
#include "tile_gemm.hpp"

#include <algorithm>

#include "cell.hpp"
#include "espalier/util/error.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/cpu/runtime/scratch.hpp"
#include "tile_packing.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

#ifdef __AMX_BF16__
namespace {

constexpr int64_t kDepth = 2048;            // depth of a block, at most
constexpr int64_t kLeftBlock = 512 * 1024;  // elements: half of a second-level cache
constexpr int64_t kRightBlock = 2048 * 1024;
constexpr int64_t kKeptSums = 2048 * 2048;  // limit for a thread
constexpr int64_t kChunk = 8;               // steps: 16 KiB of a panel
constexpr int64_t kPair = 2;                // panels of a
constexpr int64_t kSums = kPanel * kPanel;  // sums of a panel of a and a panel of b
constexpr int64_t kLine = 64;               // bytes

/// The lines to fetch into the caches while tiles are multiplied: part of b's next panel, and the lines of c that
/// receive the sums.
struct Ahead {
  const Bf16* right;  ///< nullptr: none
  std::byte* c;
  int64_t c_stride, c_bytes;  ///< stride and bytes of a row
  int64_t c_rows;
};

/// Fetches the share of one step: 128 bytes of b, and two rows of c.
void Fetch(Ahead& ahead) {
  if (ahead.right != nullptr) {
    constexpr int64_t kElements = kLine / static_cast<int64_t>(sizeof(Bf16));
    _mm_prefetch(ahead.right, _MM_HINT_T1);
    _mm_prefetch(ahead.right + kElements, _MM_HINT_T1);
    ahead.right += 2 * kElements;
  }
  for (int64_t row = 0; row < 2 && ahead.c_rows > 0; ++row, --ahead.c_rows, ahead.c += ahead.c_stride)
    for (int64_t at = 0; at < ahead.c_bytes; at += kLine) __builtin_prefetch(ahead.c + at, 1);
}

/// to[32][32] = from[32][32], or 0 if that is nullptr, plus the products of a's steps with b's.
void MultiplySteps(const Bf16* a, const Bf16* b, int64_t steps, ConstRows from, Rows to, Ahead& ahead) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(float));
  constexpr int64_t kRow = kTile / kTileRows * static_cast<int64_t>(sizeof(Bf16));
  asm volatile("" ::: "memory");  // GCC 12's intrinsics do not declare that they read memory
  if (from.data == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    const float* lower = from.data + kTileRows * from.stride;
    _tile_loadd(0, from.data, from.stride * kWord);
    _tile_loadd(1, from.data + kLanes, from.stride * kWord);
    _tile_loadd(2, lower, from.stride * kWord);
    _tile_loadd(3, lower + kLanes, from.stride * kWord);
  }
  for (int64_t step = 0; step < steps; ++step, a += kPackedStep, b += kPackedStep) {
    Fetch(ahead);
    _tile_loadd(4, a, kRow);
    _tile_loadd(6, b, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile, kRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile, kRow);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  float* lower = to.data + kTileRows * to.stride;
  _tile_stored(0, to.data, to.stride * kWord);
  _tile_stored(1, to.data + kLanes, to.stride * kWord);
  _tile_stored(2, lower, to.stride * kWord);
  _tile_stored(3, lower + kLanes, to.stride * kWord);
  asm volatile("" ::: "memory");
}

/// One GEMM. Rows and columns count in panels, depths in elements.
class Blocks {
 public:
  Blocks(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate, const Bf16* bias)
      : s_(shape),
        a_{a, s_.m, s_.k, s_.a_row, s_.a_column},
        b_{b, s_.n, s_.k, s_.b_column, s_.b_row},
        c_(c),
        accumulate_(accumulate),
        bias_(bias),
        depth_(Parts(Parts(s_.k, Parts(s_.k, kDepth)), kStep) * kStep),
        keeps_sums_(c.dtype == Dtype::kBf16 && depth_ < s_.k) {
    for (const PackedFrom* x : {&a_, &b_})
      CHECK(x->row == 1 || x->depth == 1, "neither dim of an operand is dense: strides {} and {}", x->row, x->depth);
    CHECK(c.dtype == Dtype::kF32 || !accumulate, "bf16 does not accumulate");
    CHECK(c.dtype == Dtype::kBf16 || bias == nullptr, "a bias with f32");
  }

  void Run() const {
    constexpr int64_t kWorth = 64;   // multiplications of two panels' steps that are worth waking a thread
    constexpr int64_t kPacking = 7;  // cost of packing a panel, in multiplications of two steps
    const int64_t rows = Parts(s_.m, kPanel), columns = Parts(s_.n, kPanel),
                  worth = rows * columns * Parts(s_.k, kStep) / kWorth;
    const auto threads = static_cast<int>(std::clamp<int64_t>(worth, 1, Threads()));
    const Grid grid{Parts(rows, kPair), columns, kPair, 1, kPacking};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      const AmxTiles tiles;
      Cell cell = CellOf(grid, omp_get_thread_num(), omp_get_num_threads());
      cell.row_begin *= kPair;
      cell.row_end = std::min(rows, cell.row_end * kPair);
      RunCell(cell);
    }
  }

 private:
  /// The destination of the sums of a pair of a's panels and one of b's.
  struct Target {
    int64_t row, column, depth;  ///< indices of the first element
    int64_t panels, rows, columns;
    float* sums;  ///< scratch memory for the sums
    bool IsWhole() const { return rows == panels * kPanel && columns == kPanel; }
  };

  void RunCell(const Cell& cell) const {
    const int64_t rows = cell.Rows(), columns = cell.Columns();
    if (rows * columns == 0) return;
    const int64_t block_columns = std::min(columns, kRightBlock / (depth_ * kPanel)),
                  block_rows =
                      std::min(keeps_sums_ ? kKeptSums / (block_columns * kSums) : rows, Parts(rows, kPair) * kPair);
    Bf16* right = ScratchOf<Bf16>(block_columns * kPanel * depth_);
    float* sums = keeps_sums_ ? ScratchOf<float>(block_rows * block_columns * kSums, ScratchUse::kSums) : nullptr;
    for (int64_t row = cell.row_begin; row < cell.row_end; row += block_rows)
      for (int64_t column = cell.column_begin; column < cell.column_end; column += block_columns)
        for (int64_t depth = 0; depth < s_.k; depth += depth_)
          RunBlock({row, std::min(cell.row_end, row + block_rows), column,
                    std::min(cell.column_end, column + block_columns)},
                   depth, right, sums, block_rows);
  }

  void RunBlock(const Cell& block, int64_t depth, Bf16* right, float* kept, int64_t kept_rows) const {
    const int64_t steps = Parts(std::min(depth_, s_.k - depth), kStep), panel = steps * kPackedStep,
                  rows = block.Rows(),
                  most = std::min(std::max<int64_t>(1, kLeftBlock / (kPair * panel)), Parts(rows, kPair)) * kPair;
    PackPanels<Side::kRight>(b_, block.column_begin, block.column_end, depth, steps, right);
    Bf16* left = ScratchOf<Bf16>(most * panel, ScratchUse::kPanels);
    alignas(kLine) float sums[kPair * kSums];
    for (int64_t begin = block.row_begin; begin < block.row_end; begin += most) {
      const int64_t end = std::min(begin + most, block.row_end);
      PackPanels<Side::kLeft>(a_, begin, end, depth, steps, left);
      for (int64_t j = block.column_begin; j < block.column_end; ++j)
        for (int64_t i = begin; i < end; i += kPair) {
          const int64_t panels = std::min(kPair, end - i), column = j - block.column_begin;
          const Target target{i * kPanel,
                              j * kPanel,
                              depth,
                              panels,
                              std::min(panels * kPanel, s_.m - i * kPanel),
                              std::min(kPanel, s_.n - j * kPanel),
                              keeps_sums_ ? kept + (column * kept_rows + i - block.row_begin) * kSums : sums};
          const Bf16* b = right + column * panel;
          // Each pair fetches its share of the next panel.
          const Bf16* next = j + 1 < block.column_end ? b + panel + (i - begin) * panel / (end - begin) : nullptr;
          Multiply(left + (i - begin) * panel, b, steps, next, target);
        }
    }
  }

  /// Computes the sums of a pair, chunk by chunk of the contracted dim. They are stored directly in c if they need no
  /// further work there.
  void Multiply(const Bf16* a, const Bf16* b, int64_t steps, const Bf16* next, const Target& t) const {
    const bool adds_to_c = c_.dtype == Dtype::kF32 && (accumulate_ || t.depth > 0), ends = t.depth + depth_ >= s_.k,
               in_place = c_.dtype == Dtype::kF32 && !adds_to_c && t.IsWhole();
    const int64_t element = SizeOf(c_.dtype), at = t.row * s_.c_row + t.column;
    Ahead ahead{next, static_cast<std::byte*>(c_.data) + at * element, s_.c_row * element, t.columns * element,
                keeps_sums_ && !ends ? 0 : t.rows};
    for (int64_t step = 0; step < steps; step += kChunk)
      for (int64_t panel = 0; panel < t.panels; ++panel) {
        const bool begins = step == 0 && !(keeps_sums_ && t.depth > 0);
        const Rows sums{t.sums + panel * kSums, kPanel};
        const ConstRows from{begins ? nullptr : sums.data, kPanel};
        const Rows to =
            in_place && step + kChunk >= steps ? Rows{c_.As<float>() + at + panel * kPanel * s_.c_row, s_.c_row} : sums;
        MultiplySteps(a + (panel * steps + step) * kPackedStep, b + step * kPackedStep, std::min(kChunk, steps - step),
                      from, to, ahead);
      }
    if (in_place || (keeps_sums_ && !ends)) return;
    for (int64_t r = 0; r < t.rows; ++r)
      c_.dtype == Dtype::kF32 ? Finish(t, r, c_.As<float>() + at + r * s_.c_row, adds_to_c)
                              : Finish(t, r, c_.As<Bf16>() + at + r * s_.c_row, false);
  }

  /// Finishes row r of a target: sums, sums plus a bias, or the old value plus sums.
  template <typename T>
  void Finish(const Target& t, int64_t r, T* to, bool add) const {
    const float* from = t.sums + r * kPanel;
    ForLanes(0, t.columns, [&](int64_t x, auto lanes) {
      Floats sum = Load(from + x, lanes);
      if (bias_ != nullptr) sum += Load(bias_ + t.column + x, lanes);
      Store(to + x, add ? Load(to + x, lanes) + sum : sum, lanes);
    });
  }

  const GemmShape s_;
  const PackedFrom a_, b_;
  const Array& c_;
  const bool accumulate_;
  const Bf16* bias_;
  const int64_t depth_;    ///< elements of a block's contracted dim
  const bool keeps_sums_;  ///< kept between blocks along the contracted dim, in scratch memory, because c is bf16
};

}  // namespace

void TileGemm(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate, const Bf16* bias) {
  Blocks(shape, a, b, c, accumulate, bias).Run();
}
#else
void TileGemm(const GemmShape&, const Bf16*, const Bf16*, const Array&, bool, const Bf16*) {
  CHECK(false, "compiled without AMX");
}
#endif

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
