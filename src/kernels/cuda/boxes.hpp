// Launcher of copies between a tensor and a box inside it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

inline constexpr int kMostDims = 8;

/// A target that takes what a source holds at the same global indices. Extents and shifts in elements, outermost first;
/// dims >= 1.
struct BoxCopy {
  int dims;
  int64_t target[kMostDims], source[kMostDims];  ///< extents
  int64_t shift[kMostDims];  ///< what an index in the target must be raised by to be one in the source
};

/// Elements of `element_bytes` (2 or 4); those of the target outside the source become the low bytes of `fill`, which
/// for elements of 2 bytes is two of them.
void LaunchCopyBox(const BoxCopy& copy, int64_t element_bytes, const void* source, void* target, uint32_t fill,
                   cudaStream_t stream);

}  // namespace espalier::cuda
