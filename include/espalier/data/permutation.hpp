// The order of samples: a keyed permutation without a table, so that every rank can compute every position.
#pragma once

#include <cstdint>

namespace espalier {

/// Sequential is the identity.
enum class Order : uint8_t { kSequential, kShuffled };

/// A permutation of [0, n) chosen by (seed, epoch): a Feistel network of eight rounds over the smallest even number of
/// bits that holds n, repeated until the result is in [0, n) (Black and Rogaway 2002; at most four rounds on average).
class Permutation {
 public:
  /// n >= 1.
  Permutation(int64_t n, int64_t seed, int64_t epoch);
  /// The image of `index` in [0, n).
  int64_t operator()(int64_t index) const;

 private:
  uint64_t Encrypt(uint64_t x) const;

  int64_t n_;
  int half_bits_;
  uint64_t key_;
};

/// The sample at `position` >= 0 of a run over `n` samples: epoch position / n, permuted inside the epoch.
int64_t SampleIndex(int64_t position, int64_t n, int64_t seed, Order order);

}  // namespace espalier
