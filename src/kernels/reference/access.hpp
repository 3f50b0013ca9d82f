// How the reference kernels touch tensors: every element is read as a double and rounded once when it is written.
#pragma once

#include "../kernel_list.hpp"
#include "espalier/kernels/shapes.hpp"

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

/// The first input, or where the call has input `addend`, its rounded sum with it, which output `sum` holds.
inline const Tensor& Summed(const KernelCall& call, size_t addend, size_t sum) {
  if (addend >= call.inputs.size()) return call.inputs[0];
  const Tensor& h = call.outputs[sum];
  for (int64_t i = 0; i < Volume(h.shape); ++i) Set(h, i, Get(call.inputs[0], i) + Get(call.inputs[addend], i));
  return h;
}

/// Writes an element of the first output: `value`, or where the call has input `addend`, that plus the rounded value.
inline void SetWith(const KernelCall& call, size_t addend, int64_t i, double value) {
  const Tensor& y = call.outputs[0];
  Set(y, i, addend < call.inputs.size() ? Rounded(y.dtype, value) + Get(call.inputs[addend], i) : value);
}

/// Writes an element of output `o`, or adds to it where the call accumulates.
inline void Put(const KernelCall& call, size_t o, int64_t i, double value) {
  const Tensor& x = call.outputs[o];
  Set(x, i, call.accumulate ? Get(x, i) + value : value);
}

}  // namespace espalier::reference
