// The ops `slice` and `pad` on the host, shared by the reference and cpu backends: bytes are copied, no arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/arguments.hpp"

namespace espalier {

/// Extents of a box and of a larger one around it; index in the larger one = index + offset.
struct NestedBoxes {
  int dims;
  const int64_t *inner, *outer;
  int64_t offset[kMaxDims];
};

/// Calls f(outer element, inner element, count) for each run of `count` adjacent elements of the inner box.
template <typename F>
void ForRuns(const NestedBoxes& boxes, F f) {
  const int last = boxes.dims - 1;
  int64_t rows = 1, at[kMaxDims] = {};  // index of the row within the inner box
  for (int d = 0; d < last; ++d) rows *= boxes.inner[d];
  if (boxes.inner[last] == 0) return;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t outer = 0;
    for (int d = 0; d <= last; ++d) outer = outer * boxes.outer[d] + at[d] + boxes.offset[d];
    f(outer, row * boxes.inner[last], boxes.inner[last]);
    for (int d = last; d-- > 0;) {
      if (++at[d] < boxes.inner[d]) break;
      at[d] = 0;
    }
  }
}

inline void CopyElements(const BoxArgs& a, int64_t source, int64_t target, int64_t count) {
  std::memcpy(static_cast<char*>(a.y) + target * a.element_bytes,
              static_cast<const char*>(a.x) + source * a.element_bytes, static_cast<size_t>(count * a.element_bytes));
}

inline void SliceOnHost(const SliceArgs& a) {
  NestedBoxes boxes{a.dims, a.target, a.source, {}};
  std::copy_n(a.shift, a.dims, boxes.offset);
  ForRuns(boxes, [&](int64_t source, int64_t target, int64_t count) { CopyElements(a, source, target, count); });
}

inline void PadOnHost(const PadArgs& a) {
  int64_t n = 1;
  for (int d = 0; d < a.dims; ++d) n *= a.target[d];
  if (a.element_bytes == 2)
    std::fill_n(static_cast<uint16_t*>(a.y), n, static_cast<uint16_t>(a.fill));
  else
    std::fill_n(static_cast<uint32_t*>(a.y), n, a.fill);
  NestedBoxes boxes{a.dims, a.source, a.target, {}};
  for (int d = 0; d < a.dims; ++d) boxes.offset[d] = -a.shift[d];
  ForRuns(boxes, [&](int64_t target, int64_t source, int64_t count) { CopyElements(a, source, target, count); });
}

}  // namespace espalier
