// Dropout (Srivastava et al. 2014), scaled in training: y = x / (1 - rate) for a kept element, else 0. An element is
// kept unless its word (random_words.hpp) is below rate 2^32. Rows are tokens, by their number in the global batch, and
// columns are features; for probabilities, rows are queries, columns are keys by their position, and planes are heads.
#pragma once

#include "kernels/random_words.hpp"

namespace espalier {

/// The place, rate and step of a dropout.
struct DropoutMask {
  uint64_t key = 0;                 ///< key of the place
  uint32_t threshold = 0;           ///< rate 2^32
  float scale = 1;                  ///< 1 / (1 - rate)
  const int32_t* tokens = nullptr;  ///< i32[rows]: number of each row's token in the global batch; nullptr: no dropout
  const float* step = nullptr;      ///< f32[]
  int64_t first = 0;                ///< the shard's first feature or head

  ESPALIER_HOST_DEVICE bool Drops() const { return tokens != nullptr; }
  ESPALIER_HOST_DEVICE uint32_t Step() const { return static_cast<uint32_t>(*step); }
  ESPALIER_HOST_DEVICE float FactorOf(uint32_t word) const { return word < threshold ? 0.0f : scale; }
  /// The factor of a query's probability for the key at `position`; `head` is counted in the shard.
  ESPALIER_HOST_DEVICE float OfProbability(int32_t token, int64_t head, int64_t position, uint32_t of_step) const {
    return FactorOf(WordOf(RandomBlock(key, token, position / 4, of_step, first + head), position));
  }
};

}  // namespace espalier
