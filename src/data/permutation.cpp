#include "espalier/data/permutation.hpp"

#include <algorithm>
#include <bit>

#include "espalier/util/error.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

Permutation::Permutation(int64_t n, int64_t seed, int64_t epoch) : n_(n) {
  CHECK(n >= 1, "a permutation of {} samples", n);
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
  key_ = Mix64(StreamKey(seed, "sample order") + static_cast<uint64_t>(epoch));
}

uint64_t Permutation::Encrypt(uint64_t x) const {
  constexpr uint64_t kRounds = 8;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (Mix64(Mix64(key_ ^ round) ^ right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  CHECK(0 <= index && index < n_, "sample {} of {}", index, n_);
  uint64_t x = Encrypt(static_cast<uint64_t>(index));
  while (x >= static_cast<uint64_t>(n_)) x = Encrypt(x);
  return static_cast<int64_t>(x);
}

int64_t SampleIndex(int64_t position, int64_t n, int64_t seed, Order order) {
  CHECK(position >= 0 && n >= 1, "position {} of {} samples", position, n);
  if (order == Order::kSequential) return position % n;
  return Permutation(n, seed, position / n)(position % n);
}

}  // namespace espalier
