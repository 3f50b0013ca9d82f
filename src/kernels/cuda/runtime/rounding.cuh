// Stochastic rounding to bf16 in packs (kernels/stochastic_rounding.hpp).
#pragma once

#include "kernels/cuda/runtime/random_words.cuh"
#include "kernels/stochastic_rounding.hpp"

namespace espalier::cuda {

/// Stores moment 0 or 1, rounded with the moment's bits of each word.
template <int N>
__device__ void StoreRounded(__nv_bfloat16* p, const Floats<N>& x, const Words<N>& words, int moment) {
  // The rounded values are bf16, so that the store does not round again.
  Store(p, Each(Lanes<N>{}, [&](int k) { return ToFloat(RoundedBy(x[k], BitsOf(words.values[k], moment))); }));
}

}  // namespace espalier::cuda
