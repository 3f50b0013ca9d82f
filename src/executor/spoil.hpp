// A wrong result, made on purpose.
#pragma once

#include <limits>
#include <vector>

#include "espalier/kernels/kernel_table.hpp"

namespace espalier {

/// Makes the first element that is there a NaN.
inline void Spoil(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.dtype == Dtype::kF32 && Volume(tensor.shape) > 0) {
      *tensor.As<float>() = std::numeric_limits<float>::quiet_NaN();
      return;
    }
}

}  // namespace espalier
