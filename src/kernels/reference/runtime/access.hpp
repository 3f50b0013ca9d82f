// How the reference kernels access elements: each is read as a double, and rounded once when it is written.
#pragma once

#include <algorithm>
#include <cmath>

#include "espalier/graph/op_list.hpp"
#include "espalier/util/error.hpp"
#include "kernels/arguments.hpp"

namespace espalier::reference {

#define ESPALIER_DECLARE(name, function) void function(const function##Args& args);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

/// Element i.
inline double Get(const Array& x, int64_t i) {
  return x.dtype == Dtype::kF32 ? x.As<float>()[i] : ToFloat(x.As<Bf16>()[i]);
}

/// `value` rounded to an element type.
inline double Rounded(Dtype dtype, double value) {
  const auto f = static_cast<float>(value);
  return dtype == Dtype::kF32 ? f : ToFloat(ToBf16(f));
}

inline void Set(const Array& x, int64_t i, double value) {
  if (x.dtype == Dtype::kF32) {
    x.As<float>()[i] = static_cast<float>(value);
  } else {
    x.As<Bf16>()[i] = ToBf16(static_cast<float>(value));
  }
}
inline void Set(float* x, int64_t i, double value) { x[i] = static_cast<float>(value); }

/// Element i of a master's copy, if there is one.
inline void SetCopy(const Array& copy, const float* master, int64_t i) {
  if (copy) Set(copy, i, master[i]);
}

/// Writes an element of moment 0 or 1 (stochastic_rounding.hpp).
inline void SetMoment(const Array& x, int moment, int64_t i, double value, const WordStream& s, double step) {
  if (x.dtype == Dtype::kF32) return Set(x, i, value);
  const uint32_t word = RandomWord(s, static_cast<uint32_t>(step), i);
  x.As<Bf16>()[i] = RoundedBy(static_cast<float>(value), BitsOf(word, moment));
}

/// Writes an element, or adds to it.
inline void Put(const Array& x, int64_t i, double value, bool accumulate) {
  Set(x, i, accumulate ? Get(x, i) + value : value);
}
inline void Put(float* x, int64_t i, double value, bool accumulate) {
  Set(x, i, accumulate ? static_cast<double>(x[i]) + value : value);
}

/// x or, with an addend, the rounded sum of both, which is also written to `sum`.
inline Array WithAddend(const Array& x, const Array& addend, const Array& sum, int64_t n) {
  if (!addend) return x;
  for (int64_t i = 0; i < n; ++i) Set(sum, i, Get(x, i) + Get(addend, i));
  return sum;
}

/// Writes an element of a gradient: `value` or, with an addend, the addend plus the rounded value.
inline void SetWithAddend(const Array& dx, const Array& addend, int64_t i, double value) {
  Set(dx, i, addend ? Rounded(dx.dtype, value) + Get(addend, i) : value);
}

}  // namespace espalier::reference
