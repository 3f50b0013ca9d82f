// GEMMs of small bf16 blocks with AMX tiles, accumulated in fp32. Words are as in block_gemm.hpp: TDPBF16PS reads a
// row-major left operand and a right operand of words (Intel SDM, vol. 2B).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/runtime/level.hpp"
#include "kernels/cpu/runtime/vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// A matrix of words: row i begins at data + i * stride.
struct ConstRows {
  const float* data;
  int64_t stride;
  ConstRows From(int64_t offset) const { return {data + offset, stride}; }
};
struct Rows {
  float* data;
  int64_t stride;
  Rows From(int64_t offset) const { return {data + offset, stride}; }
};

/// Rows of an AMX tile.
inline constexpr int kTileRows = 16;

/// The processor's tiles as 16 rows of 16 words each, during the lifetime of the object; nothing without AMX.
class AmxTiles {
 public:
  AmxTiles() {
#ifdef __AMX_BF16__
    if (!UsesAmx()) return;
    alignas(64) Shape shape;
    std::fill_n(shape.row_bytes, kTiles, uint16_t{64});
    std::fill_n(shape.rows, kTiles, uint8_t{16});
    asm volatile("" ::: "memory");  // GCC 12's intrinsics do not declare that they read memory
    _tile_loadconfig(&shape);
#endif
  }
  ~AmxTiles() {
#ifdef __AMX_BF16__
    if (UsesAmx()) _tile_release();
#endif
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  static constexpr int kTiles = 8;
  /// The layout that LDTILECFG reads (Intel SDM, vol. 2A).
  struct Shape {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Shape) == 64);
};

#ifdef __AMX_BF16__
/// c[16][16 kTiles] (+)= a[16][words] b[words][16 kTiles]; words is a multiple of 16. Sums are in tiles 0 to 3.
template <int kTiles>
void AmxColumns(int64_t words, ConstRows a, ConstRows b, Rows c, bool accumulate) {
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4);
  constexpr int64_t kWord = sizeof(float);
  if (accumulate) {
    _tile_loadd(0, c.data, c.stride * kWord);
    if constexpr (kTiles > 1) _tile_loadd(1, c.data + kLanes, c.stride * kWord);
    if constexpr (kTiles > 2) _tile_loadd(2, c.data + 2 * kLanes, c.stride * kWord);
    if constexpr (kTiles > 2) _tile_loadd(3, c.data + 3 * kLanes, c.stride * kWord);
  } else {
    _tile_zero(0);
    if constexpr (kTiles > 1) _tile_zero(1);
    if constexpr (kTiles > 2) _tile_zero(2);
    if constexpr (kTiles > 2) _tile_zero(3);
  }
  for (int64_t p = 0; p < words; p += kLanes) {
    const float* row = b.data + p * b.stride;
    _tile_loadd(4, a.data + p, a.stride * kWord);
    _tile_loadd(5, row, b.stride * kWord);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kTiles > 1) {
      _tile_loadd(6, row + kLanes, b.stride * kWord);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(7, row + 2 * kLanes, b.stride * kWord);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, row + 3 * kLanes, b.stride * kWord);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, c.data, c.stride * kWord);
  if constexpr (kTiles > 1) _tile_stored(1, c.data + kLanes, c.stride * kWord);
  if constexpr (kTiles > 2) _tile_stored(2, c.data + 2 * kLanes, c.stride * kWord);
  if constexpr (kTiles > 2) _tile_stored(3, c.data + 3 * kLanes, c.stride * kWord);
}

inline constexpr int64_t kTransposedWords = 2 * kLanes;

/// Sixteen columns of at most 32 words as rows of 32, zero after the last.
inline void TransposeColumns(int64_t words, ConstRows columns, float* rows) {
  for (int64_t p = 0; p < words; p += kLanes) {
    Floats x[kLanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i)
      x[i] = p + i < words ? Load(columns.data + (p + i) * columns.stride) : Floats{};
    Transpose(x);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) Store(rows + i * kTransposedWords + p, x[i]);
  }
}

/// c[16][n] (+)= a[16][words] b[words][n]; words and n are multiples of 16.
inline void AmxRows(int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
  asm volatile("" ::: "memory");
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) AmxColumns<4>(words, a, b.From(j), c.From(j), accumulate);
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) AmxColumns<2>(words, a, b.From(j), c.From(j), accumulate);
  if (j < n) AmxColumns<1>(words, a, b.From(j), c.From(j), accumulate);
  asm volatile("" ::: "memory");
}

/// The same for a column-major a of at most 32 words. Tiles need the left operand in rows.
inline void AmxRowsOfColumns(int64_t words, ConstRows a, ConstRows b, int64_t n, Rows c, bool accumulate) {
  alignas(64) float rows[kTileRows * kTransposedWords];
  TransposeColumns(words, a, rows);
  AmxRows((words + kLanes - 1) / kLanes * kLanes, {rows, kTransposedWords}, b, n, c, accumulate);
}
#endif

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
