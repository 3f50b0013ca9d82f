#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

/// One block per token: the weights of its heads, then their elements.
template <typename T, int N>
__global__ void MergeKernel(AttentionMergeArgs a) {
  SHARED_ARRAY(MergeWeights, weights);
  const int64_t width = a.heads * a.head_dim;
  T* o = a.o.As<T>();
  ForRows(a.batch * a.queries, [&](int64_t row) {
    __syncthreads();  // the last row's weights have been read
    for (int64_t h = threadIdx.x; h < a.heads; h += blockDim.x) {
      const int64_t query = (row / a.queries * a.heads + h) * a.queries + row % a.queries;
      weights[h] = MergeWeightsOf(a.lse_a[query], a.lse_b[query]);
      a.lse[query] = weights[h].lse;
    }
    __syncthreads();
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto x = Load(a.o_a + row * width + c, lanes), y = Load(a.o_b + row * width + c, lanes);
      const MergeWeights w = weights[c / a.head_dim];
      Store(o + row * width + c, Each(lanes, [&](int k) { return x[k] * w.a + y[k] * w.b; }));
    });
  });
}

}  // namespace

void AttentionMerge(const AttentionMergeArgs& a, const LaunchContext& context) {
  if (a.batch * a.queries * a.heads == 0) return;
  ForPacks(a.o.dtype, a.head_dim, AreAligned(a.o_a, a.o_b, a.o.data), [&]<typename T>(T, auto lanes) {
    Launch(MergeKernel<T, lanes.value>, RowBlocks(a.batch * a.queries), RowThreads(a.heads * a.head_dim, lanes),
           static_cast<size_t>(a.heads) * sizeof(MergeWeights), context.stream, a);
  });
}

}  // namespace espalier::cuda
