// Operands of GEMMs that are only timed.
#pragma once

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// Fills `bytes` of device memory, fp32 or bf16, with a mebibyte of numbers between -1 and 1, repeated: on zeros a GPU
/// draws less power and runs faster.
void FillWithNumbers(void* data, int64_t bytes, Dtype dtype);

}  // namespace espalier::cuda
