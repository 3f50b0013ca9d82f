// There is no cuDNN here: the plain kernels take every call.
#include "kernels/cuda/fused_attention.hpp"

#include "espalier/util/error.hpp"

namespace espalier::cuda {

int FusedAttentionMajor() { return 0; }

bool PrepareFusedAttention(const FusedCall&, int64_t) { return false; }
bool PrepareFusedAttentionGrad(const FusedCall&, int64_t) { return false; }

void FusedAttention(const FusedCall&, const FusedMemory&, cudaStream_t) { CHECK(false, "no cuDNN is emulated"); }
void FusedAttentionGrad(const FusedCall&, const FusedMemory&, cudaStream_t) { CHECK(false, "no cuDNN is emulated"); }

}  // namespace espalier::cuda
