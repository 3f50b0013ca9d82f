// An operand of a kernel, typed at run time. Included by nvcc.
#pragma once

#include "espalier/util/types.hpp"
#include "kernels/host_device.hpp"

namespace espalier {

/// A dense row-major tensor of floating-point numbers, in memory of the host or of a GPU.
struct Array {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;

  template <typename T>
  ESPALIER_HOST_DEVICE T* As() const {
    return static_cast<T*>(data);
  }
  ESPALIER_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  /// The elements from this one on.
  Array From(int64_t element) const { return {As<char>() + element * SizeOf(dtype), dtype}; }
};

}  // namespace espalier
