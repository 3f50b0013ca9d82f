// Panels of a matrix as the register tiles of panel_gemm.cpp read them.
//
// A panel is kWidth rows of a GEMM's left operand, or kWidth columns of its right one. For each word of the contracted
// dim it holds one word per row or column. A word is fp32, or bf16 widened to it, or with kPack = 2 two bf16 that are
// adjacent along the contracted dim (block_gemm.hpp). Outside the matrix, elements are zero along the contracted dim
// and undefined along the other.
#pragma once

#include <algorithm>

#include "block_gemm.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// An operand in terms of its kept dim: element (i, p) is at data[i * row + p * depth], p along the contracted dim.
/// Either stride is 1.
template <typename T>
struct PanelSource {
  const T* data;
  int64_t rows, depths;
  int64_t row, depth;
  const T* At(int64_t i, int64_t p) const { return data + i * row + p * depth; }
};

/// Words of a panel: whole vectors are stored, which may be wider than the panel.
constexpr int64_t PanelSize(int64_t width, int64_t words) {
  const int64_t spare = width % kLanes == 0 ? 0 : kLanes - width;
  return (width * words + spare + kLanes - 1) / kLanes * kLanes;
}

/// `count` consecutive elements along the contracted dim, as words; zero after the last.
template <int kPack, typename T, typename Count>
Floats WordsAlong(const T* p, Count count) {
  if constexpr (kPack == 1) {
    return Load(p, count);
  } else {
    Floats words{};
    std::memcpy(&words, p, static_cast<size_t>(count) * sizeof(T));
    return words;
  }
}

/// The words at element p of the contracted dim, from `lanes` rows, the first of which is i.
template <int kPack, typename T, typename Lanes>
Floats WordsAcross(const PanelSource<T>& x, int64_t i, int64_t p, Lanes lanes) {
  if constexpr (kPack == 1) {
    return Load(x.At(i, p), lanes);
  } else {
    Halves low{}, high{};
    const size_t bytes = static_cast<size_t>(lanes) * sizeof(T);
    std::memcpy(&low, x.At(i, p), bytes);
    if (p + 1 < x.depths) std::memcpy(&high, x.At(i, p + 1), bytes);
    return Interleave(low, high);
  }
}

/// A square of words, at row i and element p, by words: column r is row i + r, of which kUsed are read.
template <int kPack, int64_t kUsed, bool kWhole, typename T>
void LoadSquare(const PanelSource<T>& x, int64_t i, int64_t p, Floats (&square)[kLanes]) {
  constexpr int64_t kCount = kPack * kLanes;
#pragma GCC unroll 16
  for (int64_t r = 0; r < kUsed; ++r) {
    if constexpr (kWhole) {
      square[r] = WordsAlong<kPack>(x.At(i + r, p), std::integral_constant<int64_t, kCount>());
    } else {
      if (i + r < x.rows) square[r] = WordsAlong<kPack>(x.At(i + r, p), std::min(kCount, x.depths - p));
    }
  }
  Transpose(square);
}

/// Packs a square of words, at row i and element p; at most kLanes words are `wanted`. `to` is the place of the first.
template <int kPack, int64_t kWidth, bool kWhole, typename T>
[[gnu::noinline]] void PackSquare(const PanelSource<T>& x, int64_t i, int64_t p, int64_t wanted, float* to) {
  Floats square[kLanes] = {};
  LoadSquare<kPack, std::min(kWidth, kLanes), kWhole>(x, i, p, square);
#pragma GCC unroll 16
  for (int64_t word = 0; word < kLanes; ++word)
    if (kWhole || word < wanted) Store(to + word * kWidth, square[word]);
}

/// Packs one panel, the rows from i on, where the contracted dim is dense.
template <int kPack, int64_t kWidth, typename T>
void PackByDepth(const PanelSource<T>& x, int64_t i, int64_t p, int64_t words, float* to) {
  const bool whole_rows = i + kWidth <= x.rows;
  for (int64_t word = 0; word < words; word += kLanes, p += kPack * kLanes)
    for (int64_t r = 0; r < kWidth; r += kLanes)
      if (whole_rows && word + kLanes <= words && p + kPack * kLanes <= x.depths) {
        PackSquare<kPack, kWidth, true>(x, i + r, p, kLanes, to + word * kWidth + r);
      } else {
        PackSquare<kPack, kWidth, false>(x, i + r, p, words - word, to + word * kWidth + r);
      }
}

/// The same where the kept dim is dense.
template <int kPack, int64_t kWidth, typename T>
void PackByRow(const PanelSource<T>& x, int64_t i, int64_t p, int64_t words, float* to) {
  const auto pack = [&](auto lanes_from) {
    for (int64_t word = 0; word < words; ++word, p += kPack, to += kWidth)
#pragma GCC unroll 4
      for (int64_t r = 0; r < kWidth; r += kLanes) Store(to + r, WordsAcross<kPack>(x, i + r, p, lanes_from(i + r)));
  };
  constexpr int64_t kVectors = (kWidth + kLanes - 1) / kLanes;
  if (i + kVectors * kLanes <= x.rows) return pack([](int64_t) { return AllLanes(); });
  pack([&](int64_t row) { return std::clamp<int64_t>(x.rows - row, 0, kLanes); });
}

/// Packs panels [begin, end), `words` words from element p of the contracted dim on. Panel k goes to `to` + (k - begin)
/// PanelSize().
template <int kPack, int64_t kWidth, typename T>
void PackPanels(const PanelSource<T>& x, int64_t begin, int64_t end, int64_t p, int64_t words, float* to) {
  static_assert(kWidth < kLanes || kWidth % kLanes == 0);
  const int64_t size = PanelSize(kWidth, words);
  if (x.depth == 1) {
    for (int64_t panel = begin; panel < end; ++panel, to += size)
      PackByDepth<kPack, kWidth>(x, panel * kWidth, p, words, to);
    return;
  }
  constexpr int64_t kWordsAtATime = 16;  // adjacent panels, while their lines are in the cache
  for (int64_t word = 0; word < words; word += kWordsAtATime)
    for (int64_t panel = begin; panel < end; ++panel)
      PackByRow<kPack, kWidth>(x, panel * kWidth, p + word * kPack, std::min(kWordsAtATime, words - word),
                               to + (panel - begin) * size + word * kWidth);
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
