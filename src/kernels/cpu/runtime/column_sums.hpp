// Sums over the rows of a matrix, one for each column: gradients of weights that every token shares. Threads own
// columns, so an element's sum has one order on any number of threads.
#pragma once

#include "kernels.hpp"

namespace espalier::cpu {

/// Sixteen sums of term(row): blocks of rows are summed in fp32, the blocks in fp64.
template <typename Term>
F16 SumOverRows(int64_t rows, Term term) {
  constexpr int64_t kRowsOfABlock = 64;
  D8 sums[2] = {};
  for (int64_t first = 0; first < rows; first += kRowsOfABlock) {
    F16 block{};
    for (int64_t r = first; r < std::min(rows, first + kRowsOfABlock); ++r) block += term(r);
    F8 half[2];
    std::memcpy(half, &block, sizeof block);
    for (int i = 0; i < 2; ++i) sums[i] += __builtin_convertvector(half[i], D8);
  }
  const F8 half[2] = {__builtin_convertvector(sums[0], F8), __builtin_convertvector(sums[1], F8)};
  F16 result;
  std::memcpy(&result, half, sizeof result);
  return result;
}

/// Calls f(c, lanes) for every sixteen columns, on as many threads as the matrix is worth.
template <typename F>
void ForColumns(int64_t rows, int64_t columns, F f) {
  const int64_t grain = (RowGrain(rows) + kLanes - 1) / kLanes * kLanes;
  ParallelRanges(columns, grain, [&](int64_t begin, int64_t end) { ForLanes(begin, end, f); });
}

/// Writes columns of an fp32 output, or adds to them.
template <typename Lanes>
void PutColumns(float* out, F16 sum, bool accumulate, Lanes lanes) {
  Store(out, accumulate ? Load(out, lanes) + sum : sum, lanes);
}

}  // namespace espalier::cpu
