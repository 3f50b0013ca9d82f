// The optional addend of norms and of their gradients. Every result is rounded to its type as a separate op would round
// it.
#pragma once

#include "pack.cuh"

namespace espalier::cuda {

/// Rows of x, or with an addend the sums of both, which Load also writes to `sum`. No addend: nullptr. A thread reads
/// again only what it has written itself.
template <typename T>
struct RowsWithAddend {
  const T *x, *addend;
  T* sum;

  /// The rounded sum.
  template <int N>
  __device__ Floats<N> Load(int64_t i, Lanes<N> lanes) const {
    const auto v = cuda::Load(x + i, lanes);
    if (addend == nullptr) return v;
    const auto a = cuda::Load(addend + i, lanes);
    const auto rounded = Each(lanes, [&](int k) { return Rounded<T>(v[k] + a[k]); });
    Store(sum + i, rounded);
    return rounded;
  }
  /// Memory that holds the results of Load.
  __device__ const T* Loaded() const { return addend == nullptr ? x : sum; }
};

/// Stores v, or v + addend, v being rounded first: no multiplication is fused with the addition.
template <typename T, int N>
__device__ void StoreWithAddend(const T* addend, T* y, int64_t i, const Floats<N>& v, Lanes<N> lanes) {
  if (addend == nullptr) return Store(y + i, v);
  const auto a = Load(addend + i, lanes);
  Store(y + i, Each(lanes, [&](int k) { return __fadd_rn(Rounded<T>(v[k]), a[k]); }));
}

}  // namespace espalier::cuda
