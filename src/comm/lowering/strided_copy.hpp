// Boxes of tensors in memory, and copies between them.
#pragma once

#include <cstring>
#include <vector>

#include "espalier/graph/type.hpp"
#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

/// A box of elements in memory, not necessarily dense.
struct View {
  std::byte* base = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape extents;
  Shape strides;  ///< bytes, per dim

  int64_t Bytes() const { return Volume(extents) * SizeOf(dtype); }
  /// One contiguous run of bytes.
  bool IsDense() const;
  bool operator==(const View&) const = default;
};

/// The part of a local tensor inside `box` (global indices); CHECKs that this rank holds it.
View ViewOf(const Tensor& tensor, const Box& box);
View WholeOf(const Tensor& tensor);
/// The elements of `view`, dense and row-major at `base`.
View PackedAt(std::byte* base, const View& view);

/// A copy between two boxes of equal extents, as equal contiguous runs: the longest that are dense on both sides, and
/// the dims around them.
struct StridedCopy {
  struct Dim {
    int64_t extent, to_stride, from_stride;
  };
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t run_bytes = 0;
  std::vector<Dim> outer;  ///< innermost first
};

StridedCopy MakeCopy(const View& to, const View& from);

/// Calls f(offset from `to`, offset from `from`), in bytes, for every run.
template <typename F>
void ForEachRun(const StridedCopy& copy, F f) {
  std::vector<int64_t> index(copy.outer.size(), 0);
  int64_t to = 0, from = 0;
  while (true) {
    f(to, from);
    size_t d = 0;
    for (; d < index.size(); ++d) {
      const StridedCopy::Dim& dim = copy.outer[d];
      to += dim.to_stride;
      from += dim.from_stride;
      if (++index[d] < dim.extent) break;
      to -= dim.extent * dim.to_stride;
      from -= dim.extent * dim.from_stride;
      index[d] = 0;
    }
    if (d == index.size()) return;
  }
}

inline void Run(const StridedCopy& copy) {
  ForEachRun(copy, [&](int64_t to, int64_t from) {
    std::memcpy(copy.to + to, copy.from + from, static_cast<size_t>(copy.run_bytes));
  });
}

}  // namespace espalier
