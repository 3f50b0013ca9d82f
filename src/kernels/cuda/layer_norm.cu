// One block per row, which is read three times, the second and third time from the first-level cache.
#include "kernels/cuda/runtime/addend.cuh"
#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void LayerNormKernel(LayerNormArgs a) {
  const RowsWithAddend<T> in{a.x.As<T>(), a.addend.As<T>(), a.sum.As<T>()};
  const T *weight = a.weight.As<T>(), *bias = a.bias.As<T>();
  T* y = a.y.As<T>();
  const int64_t width = a.width;
  ForRows(a.rows, [&](int64_t r) {
    const T* row = in.Loaded() + r * width;
    float sum = 0, squares = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = in.Load(r * width + c, lanes);
      for (int k = 0; k < N; ++k) sum += v[k];
    });
    const float mean = BlockSum(sum) / static_cast<float>(width);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      for (int k = 0; k < N; ++k) squares += (v[k] - mean) * (v[k] - mean);
    });
    const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(width) + static_cast<float>(a.eps));
    if (threadIdx.x == 0) {
      a.mean[r] = mean;
      a.rstd[r] = scale;
    }
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), b = Load(bias + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return w[k] * ((v[k] - mean) * scale) + b[k]; }));
    });
  });
}

template <typename T, int N>
struct GradRow {
  LayerNormGradArgs a;

  __device__ void operator()(int64_t r) const {
    const int64_t width = a.width;
    const T *weight = a.weight.As<T>(), *addend = a.addend.As<T>();
    const T *row = a.x.As<T>() + r * width, *dy = a.dy.As<T>() + r * width;
    T* dx = a.dx.As<T>();
    const float mean = a.mean[r], scale = a.rstd[r];
    float plain = 0, projected = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      for (int k = 0; k < N; ++k) {
        plain += w[k] * g[k];
        projected += w[k] * g[k] * (v[k] - mean);
      }
    });
    const float shift = BlockSum(plain) / static_cast<float>(width);
    const float factor = BlockSum(projected) / static_cast<float>(width) * scale * scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      StoreWithAddend(addend, dx, r * width + c,
                      Each(lanes, [&](int k) { return scale * (w[k] * g[k] - shift - (v[k] - mean) * factor); }),
                      lanes);
    });
  }
};

template <typename T, int N>
__global__ void LayerNormGradKernel(GradRow<T, N> row) {
  ForRows(row.a.rows, row);
}

template <typename T>
struct WeightTerms {
  const T* x;
  const float *mean, *rstd;
  const T* dy;
  int64_t width;

  template <int N>
  __device__ void operator()(int64_t r, int64_t c, Floats<N>* sums, Lanes<N> lanes) const {
    const Floats<N> v = Load(x + r * width + c, lanes), g = Load(dy + r * width + c, lanes);
    const float middle = mean[r], scale = rstd[r];
    sums[0] = Each(lanes, [&](int k) { return sums[0][k] + g[k] * ((v[k] - middle) * scale); });
    sums[1] = Each(lanes, [&](int k) { return sums[1][k] + g[k]; });
  }
};

}  // namespace

void LayerNorm(const LayerNormArgs& a, const LaunchContext& context) {
  if (a.rows == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.bias.data, a.addend.data, a.y.data, a.sum.data),
           [&]<typename T>(T, auto lanes) {
             Launch(LayerNormKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream,
                    a);
           });
}

void LayerNormGrad(const LayerNormGradArgs& a, const LaunchContext& context) {
  if (a.rows == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.dy.data, a.addend.data, a.dx.data),
           [&]<typename T>(T, auto lanes) {
             Launch(LayerNormGradKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0,
                    context.stream, GradRow<T, lanes.value>{a});
           });
}

void LayerNormWeightGrad(const LayerNormWeightGradArgs& a, const LaunchContext& context) {
  auto* workspace = context.Workspace<float>(ColumnSumBytes(2, a.rows, a.width));
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.dy.data), [&]<typename T>(T, auto lanes) {
    const WeightTerms<T> terms{a.x.As<T>(), a.mean, a.rstd, a.dy.As<T>(), a.width};
    LaunchColumnSums<2, lanes.value>(terms, a.rows, a.width, {{a.dweight, a.dbias}, a.accumulate, workspace},
                                     context.stream);
  });
}

void LayerNormBackward(const LayerNormBackwardArgs& args, const LaunchContext& context) {
  const auto& [a, b] = args;
  if (a.rows == 0 || !MaySumInPass<2>(a.width)) {
    LayerNormGrad(a, context);
    return LayerNormWeightGrad(b, context);
  }
  auto* workspace = context.Workspace<float>(ColumnSumInPassBytes(2, a.rows, a.width));
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.dy.data, a.addend.data, a.dx.data),
           [&]<typename T>(T, auto lanes) {
             const WeightTerms<T> terms{b.x.As<T>(), b.mean, b.rstd, b.dy.As<T>(), b.width};
             LaunchColumnSumsInPass<2, lanes.value>(GradRow<T, lanes.value>{a}, terms, a.rows, a.width,
                                                    {{b.dweight, b.dbias}, b.accumulate, workspace},
                                                    RowThreads(a.width, lanes), context.stream);
           });
}

}  // namespace espalier::cuda
