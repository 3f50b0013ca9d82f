// Launchers of softmax cross-entropy in the steps that a sharded vocabulary needs: rows of `width` logits of `dtype`,
// the first of them of vocabulary index `first`.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/util/types.hpp"

namespace espalier::cuda {

/// Logits of a piece of the vocabulary.
struct Logits {
  Dtype dtype;
  const void* data;
  int64_t rows, width, first;
};

void LaunchLogitsMax(const Logits& x, float* largest, cudaStream_t stream);
void LaunchLogitsSum(const Logits& x, const float* largest, const int32_t* targets, float* sum, float* target,
                     cudaStream_t stream);

/// loss and count f32[], or these plus what is counted, with `add`; `workspace` as TokenLossBytes(rows).
void LaunchTokenLoss(const float* largest, const float* sum, const float* target, const int32_t* targets, int64_t rows,
                     float* loss, float* count, bool add, double* workspace, cudaStream_t stream);

/// dx may be x's.
void LaunchCrossEntropyGrad(const Logits& x, const float* largest, const float* sum, const int32_t* targets, void* dx,
                            cudaStream_t stream);

}  // namespace espalier::cuda
