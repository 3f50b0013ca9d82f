// An optional addend of norms and their gradients. Every result is rounded to its type where an op of its own would
// round it.
#pragma once

#include "vector.hpp"

namespace espalier::cpu {

/// Rows that are read, and where their sums go; without an addend (nullptr) the rows are read as they are.
template <typename T>
struct Summands {
  const T *x, *addend;
  T* sum;

  Summands Row(int64_t first) const {
    return addend == nullptr ? Summands{x + first, nullptr, nullptr} : Summands{x + first, addend + first, sum + first};
  }
  /// The rounded sum, which is written as well.
  template <typename Lanes>
  F16 Load(int64_t c, Lanes lanes) const {
    const F16 v = cpu::Load(x + c, lanes);
    if (addend == nullptr) return v;
    const F16 rounded = Rounded<T>(v + cpu::Load(addend + c, lanes));
    Store(sum + c, rounded, lanes);
    return rounded;
  }
  /// What Load has returned, from where it lies.
  const T* Loaded() const { return addend == nullptr ? x : sum; }
};

/// Stores v, or v + addend, v being rounded first.
template <typename T, typename Lanes>
void StoreWith(const T* addend, T* y, int64_t c, F16 v, Lanes lanes) {
  Store(y + c, addend == nullptr ? v : Apart(Rounded<T>(v)) + Load(addend + c, lanes), lanes);
}

}  // namespace espalier::cpu
