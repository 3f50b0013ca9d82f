// Loops as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with tiles for
// registers. From the outside to the inside:
//
//   b is packed in blocks for the last-level cache, by all threads together;
//   a is packed in blocks for the second-level cache, by the thread that needs it;
//   a panel of b passes the block's panels of a, two at a time;
//   of those three panels a chunk of the contracted dim is in the first-level cache at a time, and the sums are there.
#include "tile_gemm.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/cpu/runtime/scratch.hpp"
#include "tile_packing.hpp"

namespace espalier::cpu {

#ifdef __AMX_BF16__
namespace {

constexpr int64_t kDepth = 1024;            // of a block, at most
constexpr int64_t kLeftBlock = 512 * 1024;  // elements: half of a second-level cache
constexpr int64_t kRightBlock = 2048 * 1024;
constexpr int64_t kKeptSums = 2048 * 2048;
constexpr int64_t kChunk = 8;               // steps: 16 KiB of a panel
constexpr int64_t kPair = 2;                // panels of a
constexpr int64_t kSums = kPanel * kPanel;  // of a panel of a and one of b
constexpr int64_t kLine = 64;               // bytes

int64_t Parts(int64_t n, int64_t of) { return (n + of - 1) / of; }

/// What to fetch into the caches while tiles are multiplied: a piece of b's next panel, and the lines of c that the
/// sums go to.
struct Ahead {
  const Bf16* right;  ///< nullptr: none
  std::byte* c;
  int64_t c_stride, c_bytes;  ///< of a row
  int64_t c_rows;
};

/// The share of one step: 128 bytes of b, and two rows of c.
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

/// to[32][32] = from[32][32], or 0 if that is nullptr, plus steps of a panel of a times those of one of b.
void MultiplySteps(const Bf16* a, const Bf16* b, int64_t steps, ConstRows from, Rows to, Ahead& ahead) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(float));
  constexpr int64_t kRow = kTile / kTileRows * static_cast<int64_t>(sizeof(Bf16));
  asm volatile("" ::: "memory");  // GCC 12's intrinsics do not say that they read memory
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

/// Pairs of panels of a, and panels of b.
struct Part {
  int64_t pair_begin, pair_end, column_begin, column_end;
};

/// What thread `thread` of `threads` computes of pairs x columns: a cell of the grid whose largest cell is smallest.
Part PartOf(int64_t pairs, int64_t columns, int64_t thread, int64_t threads) {
  int64_t least = 0, across = 0;
  for (int64_t n = 1; n <= threads; ++n) {
    const int64_t largest = Parts(pairs, threads / n) * Parts(columns, n);
    if (across == 0 || largest < least) least = largest, across = n;
  }
  const int64_t down = threads / across, i = thread / across, j = thread % across;
  if (i >= down) return {};
  return {pairs * i / down, pairs * (i + 1) / down, columns * j / across, columns * (j + 1) / across};
}

/// One GEMM. Rows and columns count in panels, and blocks begin at `row`, `column` and, in elements of the contracted
/// dim, `depth`.
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
        keeps_sums_(c.dtype == Dtype::kBf16 && depth_ < s_.k),
        columns_(std::min(Parts(s_.n, kPanel), kRightBlock / (depth_ * kPanel))),
        rows_(keeps_sums_ ? std::min(Parts(s_.m, kPanel), kKeptSums / (columns_ * kSums) / kPair * kPair)
                          : Parts(s_.m, kPanel)) {
    for (const PackedFrom* x : {&a_, &b_})
      CHECK(x->row == 1 || x->depth == 1, "neither dim of an operand is dense: strides {} and {}", x->row, x->depth);
    CHECK(c.dtype == Dtype::kF32 || !accumulate, "bf16 does not accumulate");
    CHECK(c.dtype == Dtype::kBf16 || bias == nullptr, "a bias with f32");
    right_ = ScratchOf<Bf16>(columns_ * kPanel * depth_);
    if (keeps_sums_) sums_ = ScratchOf<float>(rows_ * columns_ * kSums, ScratchUse::kSums);
  }

  void Run() {
    constexpr int64_t kWorth = int64_t{1} << 21;  // multiplications that are worth waking a thread
    const int64_t threads = std::clamp<int64_t>(s_.m * s_.n * s_.k / kWorth, 1, Threads());
#pragma omp parallel num_threads(static_cast <int>(threads)) if (threads > 1)
    {
      const AmxTiles tiles;
      for (int64_t row = 0; row < Parts(s_.m, kPanel); row += rows_)
        for (int64_t column = 0; column < Parts(s_.n, kPanel); column += columns_)
          for (int64_t depth = 0; depth < s_.k; depth += depth_) RunBlock(row, column, depth);
    }
  }

 private:
  /// Where the sums of a pair and a panel of b go.
  struct Target {
    int64_t row, column, depth;  ///< of its first element in the matrices
    int64_t panels, rows, columns;
    float* sums;  ///< scratch for them
    bool IsWhole() const { return rows == panels * kPanel && columns == kPanel; }
  };

  void RunBlock(int64_t row, int64_t column, int64_t depth) {
    const int64_t columns = std::min(columns_, Parts(s_.n, kPanel) - column),
                  pairs = Parts(std::min(rows_, Parts(s_.m, kPanel) - row), kPair),
                  steps = Parts(std::min(depth_, s_.k - depth), kStep);
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t begin = columns * thread / threads, end = columns * (thread + 1) / threads;
    PackPanels<Side::kRight>(b_, column + begin, column + end, depth, steps, right_ + begin * steps * kPackedStep);
#pragma omp barrier
    RunPart(PartOf(pairs, columns, thread, threads), row, column, depth, steps);
#pragma omp barrier
  }

  void RunPart(const Part& part, int64_t row, int64_t column, int64_t depth, int64_t steps) {
    const int64_t panel = steps * kPackedStep, most = std::max<int64_t>(1, kLeftBlock / (kPair * panel));
    Bf16* left = ScratchOf<Bf16>(std::min(most, part.pair_end - part.pair_begin) * kPair * panel, ScratchUse::kPanels);
    alignas(kLine) float sums[kPair * kSums];
    for (int64_t first = part.pair_begin; first < part.pair_end; first += most) {
      const int64_t pairs = std::min(most, part.pair_end - first), begin = row + first * kPair,
                    end = std::min(begin + pairs * kPair, Parts(s_.m, kPanel));
      PackPanels<Side::kLeft>(a_, begin, end, depth, steps, left);
      for (int64_t j = part.column_begin; j < part.column_end; ++j)
        for (int64_t i = begin; i < end; i += kPair) {
          const int64_t panels = std::min(kPair, end - i);
          const Target target{i * kPanel,
                              (column + j) * kPanel,
                              depth,
                              panels,
                              std::min(panels * kPanel, s_.m - i * kPanel),
                              std::min(kPanel, s_.n - (column + j) * kPanel),
                              keeps_sums_ ? sums_ + (j * rows_ + i - row) * kSums : sums};
          const Bf16* right = right_ + j * panel;
          // Each pair fetches its share of the next panel.
          const Bf16* next = j + 1 < part.column_end ? right + panel + (i - begin) * panel / (end - begin) : nullptr;
          Multiply(left + (i - begin) * panel, right, steps, next, target);
        }
    }
  }

  /// The sums of a pair, chunk by chunk of the contracted dim. They are stored where they belong if they belong in c as
  /// they are.
  void Multiply(const Bf16* a, const Bf16* b, int64_t steps, const Bf16* next, const Target& t) {
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

  /// Row r of a target: sums, sums plus a bias, or what is there plus sums.
  template <typename T>
  void Finish(const Target& t, int64_t r, T* to, bool add) const {
    const float* from = t.sums + r * kPanel;
    ForLanes(0, t.columns, [&](int64_t x, auto lanes) {
      F16 sum = Load(from + x, lanes);
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
  const bool keeps_sums_;  ///< between blocks along the contracted dim, in scratch: c is bf16
  const int64_t columns_, rows_;
  Bf16* right_;
  float* sums_ = nullptr;
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

}  // namespace espalier::cpu
