// exp and sigmoid with the GPU's special function units, for kernels whose results are rounded to bf16, and the exact
// forms for the others. With IEEE divisions and exponentials SwiGLU would be compute-bound.
//
// Errors (CUDA C++ Programming Guide, intrinsic functions): __expf(x) 2 + floor(|1.173 x|) ulp, __fdividef 2 ulp for
// divisors up to 2^126, beyond which it gives 0. A bf16 has 2^16 ulp of fp32, so only values next to a tie of the
// rounding can change: sigmoid is off by less than 4e-7 of 1, and by less than 1e-5 of itself down to x = -60.
#pragma once

#include <type_traits>

#include "kernels/arithmetic.hpp"

namespace espalier::cuda {

/// For a result of type T.
template <typename T>
__device__ inline float ExpFor(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return __expf(x);
}

/// For a result of type T.
template <typename T>
__device__ inline float SigmoidFor(float x) {
  if constexpr (std::is_same_v<T, float>)
    return SigmoidOf(x);
  else
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

}  // namespace espalier::cuda
