// One block per row; heads are rows, too.
#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

__device__ float RstdOf(float sum, const NormRows& shape, double eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(shape.whole_width) + static_cast<float>(eps));
}

template <typename T, int N>
__global__ void RowSquaresKernel(RowSquaresArgs a) {
  const T* x = a.x.As<T>();
  const int64_t width = a.shape.width;
  ForRows(a.shape.rows, [&](int64_t r) {
    float squares = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * width + c, lanes);
      for (int k = 0; k < N; ++k) squares += v[k] * v[k];
    });
    const float sum = BlockSum(squares);
    if (threadIdx.x == 0) a.sums[r] = sum;
  });
}

template <typename T, int N>
__global__ void RowSquaresGradKernel(RowSquaresGradArgs a) {
  const T* x = a.x.As<T>();
  T* dx = a.dx.As<T>();
  const int64_t width = a.shape.width;
  ForRows(a.shape.rows, [&](int64_t r) {
    const float factor = 2.0f * a.dsums[r];
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * width + c, lanes);
      Store(dx + r * width + c, Each(lanes, [&](int k) { return v[k] * factor; }));
    });
  });
}

template <typename T, int N>
__global__ void RowNormKernel(RowNormArgs a) {
  const T *x = a.x.As<T>(), *weight = a.weight.As<T>();
  T* y = a.y.As<T>();
  const int64_t width = a.shape.width;
  ForRows(a.shape.rows, [&](int64_t r) {
    const float rstd = RstdOf(a.sums[r], a.shape, a.eps);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * width + c, lanes), w = Load(weight + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return w[k] * Rounded<T>(v[k] * rstd); }));
    });
  });
}

template <typename T, int N>
__global__ void RowNormGradKernel(RowNormGradArgs a) {
  const T *dy = a.dy.As<T>(), *weight = a.weight.As<T>();
  T* dx = a.dx.As<T>();
  const int64_t width = a.shape.width;
  ForRows(a.shape.rows, [&](int64_t r) {
    const float rstd = RstdOf(a.sums[r], a.shape, a.eps);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto g = Load(dy + r * width + c, lanes), w = Load(weight + c, lanes);
      Store(dx + r * width + c, Each(lanes, [&](int k) { return w[k] * g[k] * rstd; }));
    });
  });
}

template <typename T, int N>
__global__ void RowNormSquaresGradKernel(RowNormSquaresGradArgs a) {
  const T *dy = a.dy.As<T>(), *x = a.x.As<T>(), *weight = a.weight.As<T>();
  const int64_t width = a.shape.width;
  ForRows(a.shape.rows, [&](int64_t r) {
    float products = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto g = Load(dy + r * width + c, lanes), v = Load(x + r * width + c, lanes), w = Load(weight + c, lanes);
      for (int k = 0; k < N; ++k) products += g[k] * w[k] * v[k];
    });
    const float sum = BlockSum(products), rstd = RstdOf(a.sums[r], a.shape, a.eps);
    if (threadIdx.x == 0) a.dsums[r] = -sum / static_cast<float>(2 * a.shape.whole_width) * rstd * rstd * rstd;
  });
}

template <typename T>
struct WeightTerm {
  const T *dy, *x;
  const float* sums;
  NormRows shape;
  double eps;

  template <int N>
  __device__ void operator()(int64_t r, int64_t c, Floats<N>* totals, Lanes<N> lanes) const {
    const Floats<N> g = Load(dy + r * shape.width + c, lanes), v = Load(x + r * shape.width + c, lanes);
    const float rstd = RstdOf(sums[r], shape, eps);
    totals[0] = Each(lanes, [&](int k) { return totals[0][k] + g[k] * Rounded<T>(v[k] * rstd); });
  }
};

template <typename Kernel, typename Args, int N>
void LaunchRows(Kernel kernel, const Args& a, Lanes<N> lanes, const LaunchContext& context) {
  if (a.shape.rows > 0) Launch(kernel, RowBlocks(a.shape.rows), RowThreads(a.shape.width, lanes), 0, context.stream, a);
}

}  // namespace

void RowSquares(const RowSquaresArgs& a, const LaunchContext& context) {
  ForPacks(a.x.dtype, a.shape.width, AreAligned(a.x.data),
           [&]<typename T>(T, auto lanes) { LaunchRows(RowSquaresKernel<T, lanes.value>, a, lanes, context); });
}

void RowSquaresGrad(const RowSquaresGradArgs& a, const LaunchContext& context) {
  ForPacks(a.x.dtype, a.shape.width, AreAligned(a.x.data, a.dx.data),
           [&]<typename T>(T, auto lanes) { LaunchRows(RowSquaresGradKernel<T, lanes.value>, a, lanes, context); });
}

void RowNorm(const RowNormArgs& a, const LaunchContext& context) {
  ForPacks(a.x.dtype, a.shape.width, AreAligned(a.x.data, a.weight.data, a.y.data),
           [&]<typename T>(T, auto lanes) { LaunchRows(RowNormKernel<T, lanes.value>, a, lanes, context); });
}

void RowNormGrad(const RowNormGradArgs& a, const LaunchContext& context) {
  ForPacks(a.dy.dtype, a.shape.width, AreAligned(a.dy.data, a.weight.data, a.dx.data),
           [&]<typename T>(T, auto lanes) { LaunchRows(RowNormGradKernel<T, lanes.value>, a, lanes, context); });
}

void RowNormSquaresGrad(const RowNormSquaresGradArgs& a, const LaunchContext& context) {
  ForPacks(a.x.dtype, a.shape.width, AreAligned(a.dy.data, a.x.data, a.weight.data),
           [&]<typename T>(T, auto lanes) { LaunchRows(RowNormSquaresGradKernel<T, lanes.value>, a, lanes, context); });
}

void RowNormWeightGrad(const RowNormWeightGradArgs& a, const LaunchContext& context) {
  auto* workspace = context.Workspace<float>(ColumnSumBytes(1, a.shape.rows, a.shape.width));
  ForPacks(a.x.dtype, a.shape.width, AreAligned(a.dy.data, a.x.data), [&]<typename T>(T, auto lanes) {
    const WeightTerm<T> term{a.dy.As<T>(), a.x.As<T>(), a.sums, a.shape, a.eps};
    LaunchColumnSums<1, lanes.value>(term, a.shape.rows, a.shape.width, {{a.dweight}, a.accumulate, workspace},
                                     context.stream);
  });
}

}  // namespace espalier::cuda
