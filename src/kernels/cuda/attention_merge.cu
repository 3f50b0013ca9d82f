#include "attention_merge.hpp"
#include "kernels/arithmetic.hpp"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

/// A block takes a token: the weights of its heads, then their elements.
template <typename T, int N>
__global__ void Merge(MergedParts p, T* o, float* lse) {
  SHARED_ARRAY(MergeWeights, weights);
  const int64_t width = p.heads * p.head_dim;
  ForRows(p.batch * p.length, [&](int64_t row) {
    __syncthreads();  // the last row's weights have been read
    for (int64_t h = threadIdx.x; h < p.heads; h += blockDim.x) {
      const int64_t query = (row / p.length * p.heads + h) * p.length + row % p.length;
      weights[h] = MergeWeightsOf(p.lse_a[query], p.lse_b[query]);
      lse[query] = weights[h].lse;
    }
    __syncthreads();
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto a = Load(p.oa + row * width + c, lanes), b = Load(p.ob + row * width + c, lanes);
      const MergeWeights w = weights[c / p.head_dim];
      Store(o + row * width + c, Each(lanes, [&](int k) { return a[k] * w.a + b[k] * w.b; }));
    });
  });
}

}  // namespace

void LaunchAttentionMerge(Dtype dtype, const MergedParts& p, void* o, float* lse, cudaStream_t stream) {
  if (p.batch * p.length * p.heads == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(p.head_dim % kPack<T> == 0 && LieAtPacks(p.oa, p.ob, o), [&](auto lanes) {
      Launch(Merge<T, lanes.value>, RowBlocks(p.batch * p.length), RowThreads(p.heads * p.head_dim, lanes),
             static_cast<size_t>(p.heads) * sizeof(MergeWeights), stream, p, static_cast<T*>(o), lse);
    });
  });
}

}  // namespace espalier::cuda
