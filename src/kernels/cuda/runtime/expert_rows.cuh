// Rows of experts on the device.
#pragma once

#include "espalier/kernels/cuda/launch.cuh"
#include "kernels/arguments.hpp"

namespace espalier::cuda {

/// The first row of an expert with this number or a higher one.
__device__ inline int32_t FirstRowOf(const GroupedRows& group, int64_t expert) {
  int64_t begin = 0, end = group.rows;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (group.expert_of_row[middle] < expert)
      begin = middle + 1;
    else
      end = middle;
  }
  return static_cast<int32_t>(begin);
}

}  // namespace espalier::cuda
