// The cpu backend's kernels, and the choice of element type they share.
#pragma once

#include "../kernel_list.hpp"
#include "espalier/kernels/shapes.hpp"
#include "parallel.hpp"
#include "vector.hpp"

namespace espalier::cpu {

#define ESPALIER_DECLARE(name, function) void function(const KernelCall& call);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

/// Calls f(T{}) with the compute type of a tensor: float or Bf16.
template <typename F>
void ForElementType(Dtype dtype, F f) {
  CHECK(dtype != Dtype::kI32, "a floating-point tensor was expected");
  if (dtype == Dtype::kF32) {
    f(float{});
  } else {
    f(Bf16{});
  }
}

/// Calls f(i, lanes) for all of n elements, on as many threads as they are worth.
template <typename F>
void ForElements(int64_t n, F f) {
  ParallelRanges(n, kWorthAThread, [&](int64_t begin, int64_t end) { ForLanes(begin, end, f); });
}

/// The value of an f32[].
inline float Scalar(const Tensor& x) { return *x.As<float>(); }

}  // namespace espalier::cpu
