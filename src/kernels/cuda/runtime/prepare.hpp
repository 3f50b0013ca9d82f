// Work done before the first step, so that no step pays for it: libraries choose algorithms and compile kernels, which
// can neither be captured nor take time while ranks wait for one another.
#pragma once

#include "espalier/kernels/cuda/cuda_kernels.hpp"

namespace espalier::cuda {

void PrepareMatmul(const KernelCall& call);
void PrepareAttention(const KernelCall& call);
void PrepareAttentionGrad(const KernelCall& call);

}  // namespace espalier::cuda
