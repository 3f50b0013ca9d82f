// The op `cache_write` on the host, shared by the reference and cpu backends: bytes are copied, no arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "espalier/kernels/shapes.hpp"
#include "kernels/arguments.hpp"

namespace espalier {

inline void WriteCacheOnHost(const CacheWriteArgs& a) {
  if (a.y != a.cache) std::memcpy(a.y, a.cache, static_cast<size_t>(a.batch * a.length * a.row_bytes));
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t row = b * a.length + CheckedRow(a.positions[r], a.length);
      std::memcpy(static_cast<char*>(a.y) + row * a.row_bytes,
                  static_cast<const char*>(a.x) + (b * a.rows + r) * a.row_bytes, static_cast<size_t>(a.row_bytes));
    }
}

}  // namespace espalier
