// The cpu backend's kernels, and the choice of element type they share.
#pragma once

#include "../kernel_list.hpp"
#include "../shapes.hpp"
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

/// The value of an f32[].
inline float Scalar(const Tensor& x) { return *x.As<float>(); }

}  // namespace espalier::cpu
