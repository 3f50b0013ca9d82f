#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void AddBiasKernel(AddBiasArgs a) {
  const T *x = a.x.As<T>(), *bias = a.bias.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.rows, [&](int64_t r) {
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * a.width + c, lanes), b = Load(bias + c, lanes);
      Store(y + r * a.width + c, Each(lanes, [&](int k) { return v[k] + b[k]; }));
    });
  });
}

template <typename T>
struct Term {
  const T* dy;
  int64_t width;

  template <int N>
  __device__ void operator()(int64_t r, int64_t c, Floats<N>* sums, Lanes<N> lanes) const {
    const Floats<N> v = Load(dy + r * width + c, lanes);
    sums[0] = Each(lanes, [&](int k) { return sums[0][k] + v[k]; });
  }
};

}  // namespace

void AddBias(const AddBiasArgs& a, const LaunchContext& context) {
  if (a.rows * a.width == 0) return;
  ForPacks(a.x.dtype, a.width, AreAligned(a.x.data, a.bias.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(AddBiasKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width, lanes), 0, context.stream, a);
  });
}

void BiasGrad(const BiasGradArgs& a, const LaunchContext& context) {
  auto* workspace = context.Workspace<float>(ColumnSumBytes(1, a.rows, a.width));
  ForPacks(a.dy.dtype, a.width, AreAligned(a.dy.data), [&]<typename T>(T, auto lanes) {
    LaunchColumnSums<1, lanes.value>(Term<T>{a.dy.As<T>(), a.width}, a.rows, a.width,
                                     {{a.dbias}, a.accumulate, workspace}, context.stream);
  });
}

}  // namespace espalier::cuda
