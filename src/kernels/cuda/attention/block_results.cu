#include "block_results.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

/// A row of the fp32 results that a block changes, and the row of the block that is added to it, if any.
struct TargetRow {
  int64_t batch, row, part;
  bool in_block;
};

__host__ __device__ int64_t ChangedRows(const BlockRows& rows, Before before) {
  return rows.batch * (before == Before::kNothing ? rows.length : rows.rows);
}

__device__ TargetRow TargetRowOf(const BlockRows& rows, Before before, int64_t i) {
  const bool all = before == Before::kNothing;
  const int64_t each = all ? rows.length : rows.rows, batch = i / each, row = i % each + (all ? 0 : rows.begin),
                part = row - rows.begin;
  return {batch, row, part, part >= 0 && part < rows.rows};
}

template <int N>
__device__ Floats<N> Zeros(Lanes<N> lanes) {
  return Each(lanes, [](int) { return 0.0f; });
}

/// One thread block per row: the weights of its heads, then their elements.
template <int N>
__global__ void MergeBlockKernel(BlockRows rows, SoftmaxBlock p, Before before, float* o, float* lse) {
  SHARED_ARRAY(MergeWeights, weights);
  const int64_t width = p.heads * p.head_dim;
  const auto* part = static_cast<const __nv_bfloat16*>(p.part);
  ForRows(ChangedRows(rows, before), [&](int64_t i) {
    const TargetRow at = TargetRowOf(rows, before, i);
    __syncthreads();  // the last row's weights have been read
    for (int64_t h = threadIdx.x; h < p.heads; h += blockDim.x) {
      float& sum = lse[(at.batch * p.heads + h) * rows.length + at.row];
      weights[h] = MergeWeightsOf(before == Before::kNothing ? -INFINITY : sum,
                                  at.in_block ? p.part_lse[(at.batch * p.heads + h) * rows.rows + at.part] : -INFINITY);
      sum = weights[h].lse;
    }
    __syncthreads();
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      float* to = o + (at.batch * rows.length + at.row) * width + c;
      const auto a = before == Before::kNothing ? Zeros(lanes) : Load(to, lanes);
      const auto b = at.in_block ? Load(part + (at.batch * rows.rows + at.part) * width + c, lanes) : Zeros(lanes);
      const MergeWeights w = weights[c / p.head_dim];
      Store(to, Each(lanes, [&](int k) { return a[k] * w.a + b[k] * w.b; }));
    });
  });
}

template <int N>
__global__ void AddBlockKernel(BlockRows rows, int64_t width, const __nv_bfloat16* part, Before before, float* sum) {
  ForRows(ChangedRows(rows, before), [&](int64_t i) {
    const TargetRow at = TargetRowOf(rows, before, i);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      float* to = sum + (at.batch * rows.length + at.row) * width + c;
      const auto a = before == Before::kNothing ? Zeros(lanes) : Load(to, lanes);
      const auto b = at.in_block ? Load(part + (at.batch * rows.rows + at.part) * width + c, lanes) : Zeros(lanes);
      Store(to, Each(lanes, [&](int k) { return a[k] + b[k]; }));
    });
  });
}

__global__ void TakeRows(BlockRows rows, int64_t heads, const float* lse, float* part) {
  ForElements<1>(rows.batch * heads * rows.rows,
                 [&](int64_t i, auto) { part[i] = lse[i / rows.rows * rows.length + rows.begin + i % rows.rows]; });
}

}  // namespace

void LaunchMergeBlock(const BlockRows& rows, const SoftmaxBlock& p, Before before, float* o, float* lse,
                      cudaStream_t stream) {
  constexpr int kLanes = kPack<__nv_bfloat16>;
  ForLanes<kLanes>(p.head_dim % kLanes == 0 && AreAligned(p.part, o), [&](auto lanes) {
    Launch(MergeBlockKernel<lanes.value>, RowBlocks(ChangedRows(rows, before)), RowThreads(p.heads * p.head_dim, lanes),
           static_cast<size_t>(p.heads) * sizeof(MergeWeights), stream, rows, p, before, o, lse);
  });
}

void LaunchAddBlock(const BlockRows& rows, int64_t width, const void* part, Before before, float* sum,
                    cudaStream_t stream) {
  constexpr int kLanes = kPack<__nv_bfloat16>;
  ForLanes<kLanes>(width % kLanes == 0 && AreAligned(part, sum), [&](auto lanes) {
    Launch(AddBlockKernel<lanes.value>, RowBlocks(ChangedRows(rows, before)), RowThreads(width, lanes), 0, stream, rows,
           width, static_cast<const __nv_bfloat16*>(part), before, sum);
  });
}

void LaunchTakeRows(const BlockRows& rows, int64_t heads, const float* lse, float* part, cudaStream_t stream) {
  const int64_t n = rows.batch * heads * rows.rows;
  Launch(TakeRows, ElementBlocks(n, 1), dim3(kThreads), 0, stream, rows, heads, lse, part);
}

}  // namespace espalier::cuda
