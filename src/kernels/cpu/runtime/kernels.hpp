// The cpu backend's kernels, and their common parts: the choice of element type, and loops over elements and rows.
#pragma once

#include <algorithm>
#include <cmath>

#include "espalier/graph/op_list.hpp"
#include "espalier/util/error.hpp"
#include "kernels/arguments.hpp"
#include "parallel.hpp"
#include "vector.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

#define ESPALIER_DECLARE(name, function) void function(const function##Args& args);
ESPALIER_KERNELS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

/// Calls f(T{}) with the compute type of an array: float or Bf16.
template <typename F>
void ForElementType(Dtype dtype, F f) {
  CHECK(dtype != Dtype::kI32, "a floating-point tensor was expected");
  if (dtype == Dtype::kF32) {
    f(float{});
  } else {
    f(Bf16{});
  }
}

/// Calls f(i, lanes) for all of n elements, on a number of threads that suits n.
template <typename F>
void ForElements(int64_t n, F f) {
  ParallelRanges(n, kWorthAThread, [&](int64_t begin, int64_t end) { ForLanes(begin, end, f); });
}

/// Calls f(r) for all rows of `width` elements, on a number of threads that suits the size.
template <typename F>
void ForRows(int64_t rows, int64_t width, F f) {
  ParallelRanges(rows, RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

/// Rows of experts that have an expert: the first ones.
inline int64_t FilledRows(const GroupedRows& group) {
  const int32_t* end = group.expert_of_row + group.rows;
  return std::lower_bound(group.expert_of_row, end, kNoExpert) - group.expert_of_row;
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
