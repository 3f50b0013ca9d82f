// How the reference kernels touch tensors: every element is read as a double and rounded once when it is written.
#pragma once

#include "../kernel_list.hpp"
#include "../shapes.hpp"

namespace espalier::reference {

#define ESPALIER_DECLARE(name, function) void function(const KernelCall& call);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

/// Element i of a floating-point tensor.
inline double Get(const Tensor& x, int64_t i) {
  return x.dtype == Dtype::kF32 ? x.As<float>()[i] : ToFloat(x.As<Bf16>()[i]);
}

/// `value` rounded to an element type.
inline double Rounded(Dtype dtype, double value) {
  const auto f = static_cast<float>(value);
  return dtype == Dtype::kF32 ? f : ToFloat(ToBf16(f));
}

inline void Set(const Tensor& x, int64_t i, double value) {
  if (x.dtype == Dtype::kF32) {
    x.As<float>()[i] = static_cast<float>(value);
  } else {
    x.As<Bf16>()[i] = ToBf16(static_cast<float>(value));
  }
}

/// Writes an element of output `o`, or adds to it where the call accumulates.
inline void Put(const KernelCall& call, size_t o, int64_t i, double value) {
  const Tensor& x = call.outputs[o];
  Set(x, i, call.accumulate ? Get(x, i) + value : value);
}

}  // namespace espalier::reference
