// One block per row, which is read twice, the second time from the first-level cache.
#include "kernels/cuda/runtime/addend.cuh"
#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void RmsNormKernel(RmsNormArgs a) {
  const RowsWithAddend<T> in{a.x.As<T>(), a.addend.As<T>(), a.sum.As<T>()};
  const T* weight = a.weight.As<T>();
  T* y = a.y.As<T>();
  const int64_t width = a.width;
  ForRows(a.rows, [&](int64_t r) {
    const T* row = in.Loaded() + r * width;
    float squares = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = in.Load(r * width + c, lanes);
      for (int k = 0; k < N; ++k) squares += v[k] * v[k];
    });
    const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(width) + static_cast<float>(a.eps));
    if (threadIdx.x == 0) a.rstd[r] = scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return w[k] * Rounded<T>(v[k] * scale); }));
    });
  });
}

template <typename T, int N>
struct GradRow {
  RmsNormGradArgs a;

  __device__ void operator()(int64_t r) const {
    const int64_t width = a.width;
    const T *weight = a.weight.As<T>(), *addend = a.addend.As<T>();
    const T *row = a.x.As<T>() + r * width, *dy = a.dy.As<T>() + r * width;
    T* dx = a.dx.As<T>();
    float sum = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      for (int k = 0; k < N; ++k) sum += w[k] * g[k] * v[k];
    });
    const float scale = a.rstd[r], factor = BlockSum(sum) / static_cast<float>(width) * scale * scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      StoreWithAddend(addend, dx, r * width + c,
                      Each(lanes, [&](int k) { return scale * (w[k] * g[k] - v[k] * factor); }), lanes);
    });
  }
};

template <typename T, int N>
__global__ void RmsNormGradKernel(GradRow<T, N> row) {
  ForRows(row.a.rows, row);
}

template <typename T>
struct WeightTerm {
  const T* x;
  const float* rstd;
  const T* dy;
  int64_t width;

  template <int N>
  __device__ void operator()(int64_t r, int64_t c, Floats<N>* sums, Lanes<N> lanes) const {
    const Floats<N> v = Load(x + r * width + c, lanes), g = Load(dy + r * width + c, lanes);
    const float scale = rstd[r];
    sums[0] = Each(lanes, [&](int k) { return sums[0][k] + g[k] * Rounded<T>(v[k] * scale); });
  }
};

}  // namespace

void RmsNorm(const RmsNormArgs& a, const LaunchContext& context) {
  if (a.rows == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.addend.data, a.y.data, a.sum.data),
           [&]<typename T>(T, auto lanes) {
             Launch(RmsNormKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream, a);
           });
}

void RmsNormGrad(const RmsNormGradArgs& a, const LaunchContext& context) {
  if (a.rows == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.dy.data, a.addend.data, a.dx.data),
           [&]<typename T>(T, auto lanes) {
             Launch(RmsNormGradKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream,
                    GradRow<T, lanes.value>{a});
           });
}

void RmsNormWeightGrad(const RmsNormWeightGradArgs& a, const LaunchContext& context) {
  auto* workspace = context.Workspace<float>(ColumnSumBytes(1, a.rows, a.width));
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.dy.data), [&]<typename T>(T, auto lanes) {
    const WeightTerm<T> term{a.x.As<T>(), a.rstd, a.dy.As<T>(), a.width};
    LaunchColumnSums<1, lanes.value>(term, a.rows, a.width, {{a.dweight}, a.accumulate, workspace}, context.stream);
  });
}

void RmsNormBackward(const RmsNormBackwardArgs& args, const LaunchContext& context) {
  const auto& [a, b] = args;
  if (a.rows == 0 || !MaySumInPass<1>(a.width)) {
    RmsNormGrad(a, context);
    return RmsNormWeightGrad(b, context);
  }
  auto* workspace = context.Workspace<float>(ColumnSumInPassBytes(1, a.rows, a.width));
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.weight.data, a.dy.data, a.addend.data, a.dx.data),
           [&]<typename T>(T, auto lanes) {
             const WeightTerm<T> term{b.x.As<T>(), b.rstd, b.dy.As<T>(), b.width};
             LaunchColumnSumsInPass<1, lanes.value>(GradRow<T, lanes.value>{a}, term, a.rows, a.width,
                                                    {{b.dweight}, b.accumulate, workspace}, RowThreads(a.width, lanes),
                                                    context.stream);
           });
}

}  // namespace espalier::cuda
