// Random words in packs (kernels/random_words.hpp).
#pragma once

#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/random_words.hpp"

namespace espalier::cuda {

template <int N>
struct Words {
  uint32_t values[N];
};

/// The words of a pack from element i of a shard on. A block of random numbers is computed once for all its elements:
/// once per pack, if packs and blocks are aligned.
template <int N>
__device__ Words<N> RandomWords(const WordStream& s, uint32_t step, int64_t i, Lanes<N>) {
  Words<N> words;
  int64_t row = i / s.columns, of_row = i - row * s.columns;
  PhiloxWords block{};
  bool known = false;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int64_t column = s.column + of_row;
    if (!known || column % 4 == 0) block = RandomBlock(s.key, RowOf(s, row), column / 4, step);
    known = true;
    words.values[k] = WordOf(block, column);
    if (++of_row == s.columns) {
      of_row = 0;
      ++row;
      known = false;
    }
  }
  return words;
}

}  // namespace espalier::cuda
