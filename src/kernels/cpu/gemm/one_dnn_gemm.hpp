// oneDNN's fp32 GEMM, for kernels that build on it.
#pragma once

#include "espalier/kernels/gemm.hpp"

namespace espalier::cpu {

/// c (+)= a b in fp32; strides as `shape` says.
void MultiplyF32(const GemmShape& shape, float* a, float* b, float* c, bool accumulate);

}  // namespace espalier::cpu
