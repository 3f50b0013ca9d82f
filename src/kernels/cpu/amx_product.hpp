// Products of small bf16 blocks by AMX's tiles, accumulated in fp32. Words are as in block_product.hpp: a row-major
// left operand and a right one of words are what TDPBF16PS reads (Intel SDM, vol. 2B).
#pragma once

#include <algorithm>
#include <cstdint>

#include "bf16_method.hpp"
#include "vector.hpp"

namespace espalier::cpu {

/// Rows of a product, as tiles have them.
inline constexpr int kTileRows = 16;

/// The processor's tiles as 16 rows of 16 words each, for as long as it lives; nothing where AMX is not used.
class AmxTiles {
 public:
  AmxTiles() {
#ifdef __AMX_BF16__
    if (!UsesAmx()) return;
    alignas(64) Shape shape;
    std::fill_n(shape.row_bytes, kTiles, uint16_t{64});
    std::fill_n(shape.rows, kTiles, uint8_t{16});
    asm volatile("" ::: "memory");  // GCC 12's intrinsics do not say that they read memory
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
  /// As LDTILECFG reads it (Intel SDM, vol. 2A).
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
void AmxColumns(int64_t words, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                bool accumulate) {
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4);
  constexpr int64_t kWord = sizeof(float);
  if (accumulate) {
    _tile_loadd(0, c, ldc * kWord);
    if constexpr (kTiles > 1) _tile_loadd(1, c + kLanes, ldc * kWord);
    if constexpr (kTiles > 2) _tile_loadd(2, c + 2 * kLanes, ldc * kWord);
    if constexpr (kTiles > 2) _tile_loadd(3, c + 3 * kLanes, ldc * kWord);
  } else {
    _tile_zero(0);
    if constexpr (kTiles > 1) _tile_zero(1);
    if constexpr (kTiles > 2) _tile_zero(2);
    if constexpr (kTiles > 2) _tile_zero(3);
  }
  for (int64_t p = 0; p < words; p += kLanes) {
    const float* row = b + p * ldb;
    _tile_loadd(4, a + p, lda * kWord);
    _tile_loadd(5, row, ldb * kWord);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kTiles > 1) {
      _tile_loadd(6, row + kLanes, ldb * kWord);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(7, row + 2 * kLanes, ldb * kWord);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, row + 3 * kLanes, ldb * kWord);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, c, ldc * kWord);
  if constexpr (kTiles > 1) _tile_stored(1, c + kLanes, ldc * kWord);
  if constexpr (kTiles > 2) _tile_stored(2, c + 2 * kLanes, ldc * kWord);
  if constexpr (kTiles > 2) _tile_stored(3, c + 3 * kLanes, ldc * kWord);
}

inline constexpr int64_t kTurned = 2 * kLanes;

/// Sixteen columns of at most 32 words as rows of 32, with zeros behind the last.
inline void Turn(int64_t words, const float* columns, int64_t stride, float* rows) {
  for (int64_t p = 0; p < words; p += kLanes) {
    F16 x[kLanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) x[i] = p + i < words ? Load(columns + (p + i) * stride) : F16{};
    Transpose(x);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) Store(rows + i * kTurned + p, x[i]);
  }
}

/// c[16][n] (+)= a[16][words] b[words][n]; words and n are multiples of 16.
inline void AmxRows(int64_t words, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t n, float* c,
                    int64_t ldc, bool accumulate) {
  asm volatile("" ::: "memory");
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) AmxColumns<4>(words, a, lda, b + j, ldb, c + j, ldc, accumulate);
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) AmxColumns<2>(words, a, lda, b + j, ldb, c + j, ldc, accumulate);
  if (j < n) AmxColumns<1>(words, a, lda, b + j, ldb, c + j, ldc, accumulate);
  asm volatile("" ::: "memory");
}

/// The same of a column-major a, of 32 words at most. Tiles want the left operand in rows.
inline void AmxRowsOfColumns(int64_t words, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t n,
                             float* c, int64_t ldc, bool accumulate) {
  alignas(64) float turned[kTileRows * kTurned];
  Turn(words, a, lda, turned);
  AmxRows((words + kLanes - 1) / kLanes * kLanes, turned, kTurned, b, ldb, n, c, ldc, accumulate);
}
#endif

}  // namespace espalier::cpu
