// Panels of a matrix as AMX's tiles read them (TDPBF16PS, Intel SDM, vol. 2B).
//
// A panel is 32 rows of a GEMM's left operand or 32 columns of its right one. It is packed in steps of 32 elements of
// the contracted dim: two tiles of 16 rows of 16 words, a word being two bf16 that are adjacent along the contracted
// dim. A left tile has a row of the panel in each of its rows. A right tile has a pair of the contracted dim in each
// row, with a word for each column of the panel. So each is the other with words transposed.
#pragma once

#include "amx_gemm.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

#ifdef __AMX_BF16__
inline constexpr int64_t kPanel = 32;                   ///< rows of the left operand, or columns of the right one
inline constexpr int64_t kStep = 32;                    ///< elements of the contracted dim
inline constexpr int64_t kTile = kTileRows * kStep;     ///< elements
inline constexpr int64_t kPackedStep = kPanel * kStep;  ///< elements: two tiles

/// An operand in terms of its kept dim: element (i, p) is at data[i * row + p * depth], p along the contracted dim.
/// Either stride is 1.
struct PackedFrom {
  const Bf16* data;
  int64_t rows, depths;
  int64_t row, depth;
};

enum class Side : uint8_t { kLeft, kRight };

/// A tile in registers, by rows.
using TileWords = Floats[kTileRows];

/// The mask of the first `elements` of a step; none below 1, all from 32 on.
inline __mmask32 MaskOf(int64_t elements) {
  return elements >= kStep ? ~__mmask32{0} : (__mmask32{1} << std::max<int64_t>(elements, 0)) - 1;
}

inline void StoreTile(const TileWords& words, Bf16* to) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileRows; ++i) std::memcpy(static_cast<void*>(to + i * kStep), &words[i], sizeof words[i]);
}

/// Packs one step of the panel from row i on, where the contracted dim is dense; zero outside the matrix.
template <Side kSide>
void PackByDepth(const PackedFrom& x, int64_t i, int64_t p, Bf16* to) {
  const __mmask32 mask = MaskOf(x.depths - p);
  for (int64_t tile = 0; tile < 2; ++tile, i += kTileRows, to += kTile) {
    const Bf16* from = x.data + i * x.row + p;
    const int64_t rows = x.rows - i;
    TileWords words;
#pragma GCC unroll 16
    for (int64_t r = 0; r < kTileRows; ++r)
      words[r] = r < rows ? std::bit_cast<Floats>(_mm512_maskz_loadu_epi16(mask, from + r * x.row)) : Floats{};
    if constexpr (kSide == Side::kRight) Transpose(words);
    StoreTile(words, to);
  }
}

/// The same where the kept dim is dense.
template <Side kSide>
void PackByRow(const PackedFrom& x, int64_t i, int64_t p, Bf16* to) {
  const __mmask32 mask = MaskOf(x.rows - i);
  const Bf16* from = x.data + p * x.depth + i;
  const int64_t depths = x.depths - p;
  // Interleaves the elements of both operands: their lower halves, and their upper halves.
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0),
                high = _mm512_add_epi16(low, _mm512_set1_epi16(kLanes));
  const auto line = [&](int64_t of) {
    return of < depths ? _mm512_maskz_loadu_epi16(mask, from + of * x.depth) : _mm512_setzero_si512();
  };
  TileWords words[2];
#pragma GCC unroll 16
  for (int64_t pair = 0; pair < kTileRows; ++pair) {
    const __m512i even = line(2 * pair), odd = line(2 * pair + 1);
    words[0][pair] = std::bit_cast<Floats>(_mm512_permutex2var_epi16(even, low, odd));
    words[1][pair] = std::bit_cast<Floats>(_mm512_permutex2var_epi16(even, high, odd));
  }
  for (int64_t tile = 0; tile < 2; ++tile) {
    if constexpr (kSide == Side::kLeft) Transpose(words[tile]);
    StoreTile(words[tile], to + tile * kTile);
  }
}

/// Packs panels [begin, end), elements [p, p + 32 steps) of the contracted dim. Panel k goes to `to` + (k - begin) *
/// steps * kPackedStep.
template <Side kSide>
void PackPanels(const PackedFrom& x, int64_t begin, int64_t end, int64_t p, int64_t steps, Bf16* to) {
  if (x.depth == 1) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t step = 0; step < steps; ++step, to += kPackedStep)
        PackByDepth<kSide>(x, panel * kPanel, p + step * kStep, to);
    return;
  }
  for (int64_t step = 0; step < steps; ++step)
    for (int64_t panel = begin; panel < end; ++panel)
      PackByRow<kSide>(x, panel * kPanel, p + step * kStep, to + ((panel - begin) * steps + step) * kPackedStep);
}
#endif

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
