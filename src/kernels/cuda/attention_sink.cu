#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"

namespace espalier::cuda {
namespace {

/// One block per token: the weights of its heads, then their elements.
template <typename T, int N>
__global__ void SinkKernel(AttentionSinkArgs a) {
  SHARED_ARRAY(float, weights);
  const int64_t width = a.heads * a.head_dim;
  const T *o = a.o.As<T>(), *sinks = a.sinks.As<T>();
  T* with = a.o_with.As<T>();
  ForRows(a.batch * a.queries, [&](int64_t row) {
    __syncthreads();  // the last row's weights have been read
    for (int64_t h = threadIdx.x; h < a.heads; h += blockDim.x) {
      const int64_t query = (row / a.queries * a.heads + h) * a.queries + row % a.queries;
      const MergeWeights merged = MergeWeightsOf(a.lse[query], Widen(sinks[h]));
      weights[h] = merged.a;
      a.lse_with[query] = merged.lse;
    }
    __syncthreads();
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto x = Load(o + row * width + c, lanes);
      const float weight = weights[c / a.head_dim];
      Store(with + row * width + c, Each(lanes, [&](int k) { return x[k] * weight; }));
    });
  });
}

/// Adds the share of column c in dO . o, times the sink's probability. The columns of a pack belong to one head.
template <typename T>
struct SinkTerm {
  AttentionSinkGradArgs a;

  template <int N>
  __device__ void operator()(int64_t r, int64_t c, Floats<N>* sums, Lanes<N> lanes) const {
    const int64_t head = c / a.head_dim, at = r * a.heads * a.head_dim + c;
    const int64_t query = (r / a.queries * a.heads + head) * a.queries + r % a.queries;
    const Floats<N> o = Load(a.o.As<T>() + at, lanes), d_o = Load(a.d_o.As<T>() + at, lanes);
    const float share = SinkShareOf(Widen(a.sinks.As<T>()[head]), a.lse[query]);
    sums[0] = Each(lanes, [&](int k) { return sums[0][k] + share * (o[k] * d_o[k]); });
  }
};

/// One thread per head: the sum of its columns.
__global__ void SumColumnsOfHeads(AttentionSinkGradArgs a, const float* columns) {
  const int64_t head = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (head >= a.heads) return;
  float sum = 0;
  for (int64_t c = head * a.head_dim; c < (head + 1) * a.head_dim; ++c) sum += columns[c];
  a.dsinks[head] = (a.accumulate ? a.dsinks[head] : 0.0f) - sum;
}

}  // namespace

void AttentionSink(const AttentionSinkArgs& a, const LaunchContext& context) {
  if (a.batch * a.queries * a.heads == 0) return;
  ForPacks(a.o.dtype, a.head_dim, AreAligned(a.o.data, a.o_with.data), [&]<typename T>(T, auto lanes) {
    Launch(SinkKernel<T, lanes.value>, RowBlocks(a.batch * a.queries), RowThreads(a.heads * a.head_dim, lanes),
           static_cast<size_t>(a.heads) * sizeof(float), context.stream, a);
  });
}

void AttentionSinkGrad(const AttentionSinkGradArgs& a, const LaunchContext& context) {
  if (a.heads == 0) return;
  const int64_t rows = a.batch * a.queries, columns = a.heads * a.head_dim;
  auto* workspace = context.Workspace<float>(SinkGradBytes(rows, columns));
  float* sums = workspace + ColumnSumBytes(1, rows, columns) / static_cast<int64_t>(sizeof(float));
  ForPacks(a.o.dtype, a.head_dim, AreAligned(a.o.data, a.d_o.data), [&]<typename T>(T, auto lanes) {
    LaunchColumnSums<1, lanes.value>(SinkTerm<T>{a}, rows, columns, {{sums}, false, workspace}, context.stream);
  });
  Launch(SumColumnsOfHeads, dim3(static_cast<unsigned>((a.heads + 63) / 64)), dim3(64), 0, context.stream, a,
         static_cast<const float*>(sums));
}

}  // namespace espalier::cuda
