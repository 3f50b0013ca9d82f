// Sums of a GEMM whose left operand has few rows, as in `espalier sample`. Each element of b is then used a few times,
// so reading b takes most of the time: it is read in place, once, and not packed.
//
// A vector holds columns of c, as in panel_gemm.cpp, and a sum is the same chain of multiply-adds. If the kept dim of b
// is dense, several rows of b are added to all sums at a time, and the sums stay in the first-level cache. Otherwise
// squares of b are transposed in registers, and the sums of a vector of columns stay in registers, too.
#pragma once

#include "panel_packing.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

inline constexpr int64_t kFewRows = 4;

/// Columns of c: [begin, end). Their sums are at sums.data, row by row.
struct FewSums {
  int64_t begin, end;
  Rows sums;
};

/// Adds kWords words of the contracted dim, from element p on, to all sums. `a` is the panel of a at that word.
template <int kPack, int kUsedRows, int kWords, typename T>
void AddWords(const PanelSource<T>& b, int64_t p, const float* a, const FewSums& to) {
  ForLanes(to.begin, to.end, [&](int64_t i, auto lanes) {
    float* sums = to.sums.data + (i - to.begin);
    Floats sum[kUsedRows];
#pragma GCC unroll 4
    for (int r = 0; r < kUsedRows; ++r) sum[r] = Load(sums + r * to.sums.stride, lanes);
#pragma GCC unroll 8
    for (int word = 0; word < kWords; ++word) {
      const Floats row = WordsAcross<kPack>(b, i, p + word * kPack, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kUsedRows; ++r) sum[r] = MultiplyAdd<kPack>(sum[r], a[word * kFewRows + r], row);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kUsedRows; ++r) Store(sums + r * to.sums.stride, sum[r], lanes);
  });
}

/// The sums over `words` words where the kept dim of b is dense.
template <int kPack, int kUsedRows, typename T>
void SumByRow(const PanelSource<T>& b, int64_t p, int64_t words, const float* a, const FewSums& to) {
  constexpr int kWords = 8;
  for (int64_t r = 0; r < kUsedRows; ++r) std::fill_n(to.sums.data + r * to.sums.stride, to.end - to.begin, 0.0f);
  for (; words >= kWords; words -= kWords, p += kWords * kPack, a += kWords * kFewRows)
    AddWords<kPack, kUsedRows, kWords>(b, p, a, to);
  for (; words > 0; --words, p += kPack, a += kFewRows) AddWords<kPack, kUsedRows, 1>(b, p, a, to);
}

/// Adds `used` words of a square of b, at row i and element p, to the sums of its columns.
template <int kPack, bool kWhole, int kUsedRows, typename T>
void AddSquare(const PanelSource<T>& b, int64_t i, int64_t p, int64_t used, const float* a, Floats (&sums)[kUsedRows]) {
  Floats square[kLanes] = {};
  LoadSquare<kPack, kLanes, kWhole>(b, i, p, square);
#pragma GCC unroll 16
  for (int word = 0; word < kLanes; ++word) {
    if (!kWhole && word >= used) break;
#pragma GCC unroll 4
    for (int r = 0; r < kUsedRows; ++r) sums[r] = MultiplyAdd<kPack>(sums[r], a[word * kFewRows + r], square[word]);
  }
}

/// The sums of a vector of columns, from column i on. All squares of a line of b are read before another line takes its
/// place, since rows that are a multiple of 4 KiB apart share a few places in the cache. The next columns are fetched
/// meanwhile. kWhole: the matrix has all columns of the vector.
template <int kPack, int kUsedRows, bool kWhole, typename T>
[[gnu::noinline]] void SumSquares(const PanelSource<T>& b, int64_t i, int64_t p, int64_t words, const float* a,
                                  Rows to) {
  constexpr int64_t kDepth = kPack * kLanes;  // depth of a square
  constexpr int64_t kSquares =
      std::max<int64_t>(1, 64 / (kDepth * static_cast<int64_t>(sizeof(T))));  // squares of a line
  Floats sums[kUsedRows] = {};
  for (; kWhole && words >= kSquares * kLanes && p + kSquares * kDepth <= b.depths; words -= kSquares * kLanes) {
    for (int64_t r = 0; r < kLanes; ++r) __builtin_prefetch(b.At(i + kLanes + r, p), 0, 2);
    for (int64_t square = 0; square < kSquares; ++square, p += kDepth, a += kLanes * kFewRows)
      AddSquare<kPack, true>(b, i, p, kLanes, a, sums);
  }
  for (; words > 0; words -= kLanes, p += kDepth, a += kLanes * kFewRows)
    AddSquare<kPack, false>(b, i, p, words, a, sums);
#pragma GCC unroll 4
  for (int r = 0; r < kUsedRows; ++r) Store(to.data + r * to.stride, sums[r]);
}

/// The sums over `words` words where the contracted dim of b is dense. Each row is stored in whole vectors.
template <int kPack, int kUsedRows, typename T>
void SumByDepth(const PanelSource<T>& b, int64_t p, int64_t words, const float* a, const FewSums& to) {
  int64_t i = to.begin;
  for (; i + kLanes <= to.end; i += kLanes)
    SumSquares<kPack, kUsedRows, true>(b, i, p, words, a, to.sums.From(i - to.begin));
  if (i < to.end) SumSquares<kPack, kUsedRows, false>(b, i, p, words, a, to.sums.From(i - to.begin));
}

/// Sums over `words` words from element p of the contracted dim on; `a` is the panel of a at that word.
template <int kPack, int kUsedRows, typename T>
void SumFewRows(const PanelSource<T>& b, int64_t p, int64_t words, const float* a, const FewSums& to) {
  b.row == 1 ? SumByRow<kPack, kUsedRows>(b, p, words, a, to) : SumByDepth<kPack, kUsedRows>(b, p, words, a, to);
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
