// The optional addend of norms and of their gradients. Every result is rounded to its type as a separate op would round
// it.
#pragma once

#include "vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

/// Rows of x or, with an addend, rounded sums of x and addend, which Load also writes to `sum`. No addend: nullptr.
template <typename T>
struct RowsWithAddend {
  const T *x, *addend;
  T* sum;

  RowsWithAddend Row(int64_t first) const {
    return addend == nullptr ? RowsWithAddend{x + first, nullptr, nullptr}
                             : RowsWithAddend{x + first, addend + first, sum + first};
  }
  /// The rounded sum.
  template <typename Lanes>
  Floats Load(int64_t c, Lanes lanes) const {
    const Floats v = cpu::Load(x + c, lanes);
    if (addend == nullptr) return v;
    const Floats rounded = Rounded<T>(v + cpu::Load(addend + c, lanes));
    Store(sum + c, rounded, lanes);
    return rounded;
  }
  /// Memory that holds the results of Load.
  const T* Loaded() const { return addend == nullptr ? x : sum; }
};

/// Stores v, or v + addend; v is rounded first.
template <typename T, typename Lanes>
void StoreWithAddend(const T* addend, T* y, int64_t c, Floats v, Lanes lanes) {
  Store(y + c, addend == nullptr ? v : Opaque(Rounded<T>(v)) + Load(addend + c, lanes), lanes);
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
