// What a piece holds where it has nothing to add to a sum, or nothing to set against a maximum. Shared by the backends:
// bit patterns, no arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

inline void FillZero(const Tensor& y) {
  if (Volume(y.shape) > 0) std::memset(y.data, 0, static_cast<size_t>(Volume(y.shape) * SizeOf(y.dtype)));
}

/// Minus infinity; of integers the least.
inline void FillLowest(const Tensor& y) {
  const int64_t n = Volume(y.shape);
  if (y.dtype == Dtype::kBf16) return void(std::fill_n(y.As<uint16_t>(), n, uint16_t{0xff80}));
  std::fill_n(y.As<uint32_t>(), n, y.dtype == Dtype::kF32 ? uint32_t{0xff800000} : uint32_t{0x80000000});
}

}  // namespace espalier
