// One block per row; for the gradient of biases one per expert and 32 packs of columns.
#include <algorithm>

#include "kernels/cuda/runtime/expert_rows.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

constexpr int kSumLanes = 32, kSumRows = 8;
/// Rows that a thread sums in fp32; these sums are added in fp64.
constexpr int64_t kRowsOfASum = 64;

__device__ float WeightOf(const float* weights, int64_t r) { return weights == nullptr ? 1.0f : weights[r]; }

template <typename T, int N>
__global__ void AddRowBiasKernel(AddRowBiasArgs a) {
  const T *x = a.x.As<T>(), *biases = a.bias.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.group.rows, [&](int64_t r) {
    if (a.group.expert_of_row[r] == kNoExpert) return;
    const T* bias = biases + a.group.expert_of_row[r] * a.width;
    const float weight = WeightOf(a.weights, r);
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * a.width + c, lanes), b = Load(bias + c, lanes);
      Store(y + r * a.width + c, Each(lanes, [&](int k) { return v[k] + weight * b[k]; }));
    });
  });
}

template <typename T, int N>
__global__ void RowBiasGradKernel(RowBiasGradArgs a) {
  __shared__ double block[kSumRows][kSumLanes * N];
  const int64_t first = int64_t{blockIdx.x} * kSumLanes * N, c = first + threadIdx.x * N;
  for (int64_t e = blockIdx.y; e < a.group.experts; e += gridDim.y) {
    const int64_t end = FirstRowOf(a.group, e + 1);
    double total[N] = {};
    for (int64_t r = FirstRowOf(a.group, e) + int64_t{threadIdx.y}; r < end && c < a.width;) {
      Floats<N> sum = {};
      for (int64_t i = 0; i < kRowsOfASum && r < end; ++i, r += kSumRows) {
        const auto dy = Load(a.dy.As<T>() + r * a.width + c, Lanes<N>{});
        const float weight = WeightOf(a.weights, r);
        for (int k = 0; k < N; ++k) sum[k] += weight * dy[k];
      }
      for (int k = 0; k < N; ++k) total[k] += sum[k];
    }
    __syncthreads();  // the last expert's sums have been read
    for (int k = 0; k < N; ++k) block[threadIdx.y][threadIdx.x * N + k] = total[k];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y * kSumLanes + threadIdx.x); i < kSumLanes * N && first + i < a.width;
         i += kSumLanes * kSumRows) {
      double sum = 0;
      for (int r = 0; r < kSumRows; ++r) sum += block[r][i];
      float* dbias = a.dbias + e * a.width + first + i;
      *dbias = a.accumulate ? *dbias + static_cast<float>(sum) : static_cast<float>(sum);
    }
  }
}

template <typename T, int N>
__global__ void RowWeightGradKernel(RowWeightGradArgs a) {
  const T *adjoint = a.dy.As<T>(), *biases = a.bias.As<T>();
  ForRows(a.group.rows, [&](int64_t r) {
    if (a.group.expert_of_row[r] == kNoExpert) return;
    const T *dy = adjoint + r * a.width, *bias = biases + a.group.expert_of_row[r] * a.width;
    float sum = 0;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const auto d = Load(dy + c, lanes), b = Load(bias + c, lanes);
      for (int k = 0; k < N; ++k) sum += d[k] * b[k];
    });
    sum = BlockSum(sum);
    if (threadIdx.x == 0) a.dweights[r] = sum;
  });
}

}  // namespace

void AddRowBias(const AddRowBiasArgs& a, const LaunchContext& context) {
  if (a.group.rows * a.width == 0) return;
  ForPacks(a.y.dtype, a.width, AreAligned(a.x.data, a.bias.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(AddRowBiasKernel<T, lanes.value>, RowBlocks(a.group.rows), RowThreads(a.width, lanes), 0, context.stream, a);
  });
}

void RowBiasGrad(const RowBiasGradArgs& a, const LaunchContext& context) {
  if (a.group.experts * a.width == 0) return;
  ForPacks(a.dy.dtype, a.width, AreAligned(a.dy.data), [&]<typename T>(T, auto lanes) {
    constexpr int64_t kColumns = kSumLanes * lanes.value;
    const dim3 blocks(static_cast<unsigned>((a.width + kColumns - 1) / kColumns),
                      static_cast<unsigned>(std::min(a.group.experts, kMaxMatrices)));
    Launch(RowBiasGradKernel<T, lanes.value>, blocks, dim3(kSumLanes, kSumRows), 0, context.stream, a);
  });
}

void RowWeightGrad(const RowWeightGradArgs& a, const LaunchContext& context) {
  if (a.group.rows == 0) return;
  ForPacks(a.dy.dtype, a.width, AreAligned(a.dy.data, a.bias.data), [&]<typename T>(T, auto lanes) {
    Launch(RowWeightGradKernel<T, lanes.value>, RowBlocks(a.group.rows), RowThreads(a.width, lanes), 0, context.stream,
           a);
  });
}

}  // namespace espalier::cuda
