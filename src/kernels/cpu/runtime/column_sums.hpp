// Sums over the rows of a matrix, one for each column: gradients of weights that every token shares. Threads own
// columns or blocks of rows, so an element's sum has one order on any number of threads: blocks of rows are summed in
// fp32, the blocks in fp64.
#pragma once

#include "kernels.hpp"
#include "scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

inline constexpr int64_t kRowsOfABlock = 64;

/// Sums of block(b), one per lane.
template <typename Block>
Floats SumOverBlocks(int64_t blocks, Block block) {
  Wide sums{};
  for (int64_t b = 0; b < blocks; ++b) {
    const Wide x = Widened(block(b));
    sums.low += x.low;
    sums.high += x.high;
  }
  return ToFloats(sums);
}

inline int64_t BlocksOf(int64_t rows) { return (rows + kRowsOfABlock - 1) / kRowsOfABlock; }

/// Calls f(r) for the rows of a block.
template <typename F>
void ForRowsOfBlock(int64_t rows, int64_t block, F f) {
  for (int64_t r = block * kRowsOfABlock; r < std::min(rows, (block + 1) * kRowsOfABlock); ++r) f(r);
}

/// Sums of term(row), one per lane.
template <typename Term>
Floats SumOverRows(int64_t rows, Term term) {
  return SumOverBlocks(BlocksOf(rows), [&](int64_t b) {
    Floats sum{};
    ForRowsOfBlock(rows, b, [&](int64_t r) { sum += term(r); });
    return sum;
  });
}

/// Calls f(c, lanes) for every vector of columns, on a number of threads that suits the size.
template <typename F>
void ForColumns(int64_t rows, int64_t columns, F f) {
  const int64_t grain = (RowGrain(rows) + kLanes - 1) / kLanes * kLanes;
  ParallelRanges(columns, grain, [&](int64_t begin, int64_t end) { ForLanes(begin, end, f); });
}

/// Writes columns of an fp32 output, or adds to them.
template <typename Lanes>
void PutColumns(float* out, Floats sum, bool accumulate, Lanes lanes) {
  Store(out, accumulate ? Load(out, lanes) + sum : sum, lanes);
}

/// Several sums for each column, f32[columns] each.
template <size_t kSums>
struct ColumnOutputs {
  float* sums[kSums];
  bool accumulate;
};

/// The sums of SumOverRows, bit by bit, in a pass over whole rows that also does other work: pass(r) is called for
/// every row, then each term(r, c, lanes), one per sum, for its columns. Threads own blocks of rows.
template <typename Pass, typename... Terms>
void SumInPass(int64_t rows, int64_t columns, const ColumnOutputs<sizeof...(Terms)>& outputs, Pass pass,
               Terms... terms) {
  constexpr int64_t kSums = sizeof...(Terms);
  const int64_t blocks = BlocksOf(rows), size = kSums * columns;
  auto* partials = ScratchOf<float>(blocks * size);
  const auto add = [columns](float* sums, int64_t r, auto term) {
    ForLanes(0, columns, [&](int64_t c, auto lanes) {
      Store(sums + c, Load(static_cast<const float*>(sums + c), lanes) + term(r, c, lanes), lanes);
    });
  };
  ParallelRanges(blocks, (RowGrain(columns) + kRowsOfABlock - 1) / kRowsOfABlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      std::fill_n(partials + b * size, size, 0.0f);
      ForRowsOfBlock(rows, b, [&](int64_t r) {
        pass(r);
        float* sums = partials + b * size;
        ((add(sums, r, terms), sums += columns), ...);
      });
    }
  });
  ForColumns(blocks, columns, [&](int64_t c, auto lanes) {
    for (int64_t s = 0; s < kSums; ++s) {
      const float* of_column = partials + s * columns + c;
      const Floats sum = SumOverBlocks(blocks, [&](int64_t b) { return Load(of_column + b * size, lanes); });
      PutColumns(outputs.sums[s] + c, sum, outputs.accumulate, lanes);
    }
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
