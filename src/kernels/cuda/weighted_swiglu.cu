// One block per row. Outputs may be inputs: an element's inputs are read before its outputs are written.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/quick.cuh"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void WeightedSwigluKernel(WeightedSwigluArgs a) {
  const T *gate = a.gate.As<T>(), *up = a.up.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.group.rows, [&](int64_t r) {
    if (a.group.expert_of_row[r] == kNoExpert) return;
    const float weight = a.weights[r];
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const int64_t i = r * a.width + c;
      const auto g = Load(gate + i, lanes), u = Load(up + i, lanes);
      Store(y + i, Each(lanes, [&](int k) {
              const float inner = a.rule.Gate(g[k]);
              return weight * SwigluOf(inner, a.rule.Up(u[k]), SigmoidFor<T>(a.rule.alpha * inner));
            }));
    });
  });
}

/// Gate and up have the adjoints of swiglu for weight dy. The adjoint of the weight is the sum of swiglu dy over the
/// row.
template <typename T, int N>
__global__ void WeightedSwigluGradKernel(WeightedSwigluGradArgs a) {
  const T *gate = a.gate.As<T>(), *up = a.up.As<T>(), *adjoint = a.dy.As<T>();
  T *dgate = a.dgate.As<T>(), *dup = a.dup.As<T>();
  ForRows(a.group.rows, [&](int64_t r) {
    if (a.group.expert_of_row[r] == kNoExpert) return;
    const float weight = a.weights[r];
    float sum = 0;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      const int64_t i = r * a.width + c;
      const auto g = Load(gate + i, lanes), u = Load(up + i, lanes), dy = Load(adjoint + i, lanes);
      const auto s = Each(lanes, [&](int k) { return SigmoidFor<T>(a.rule.alpha * a.rule.Gate(g[k])); });
      for (int k = 0; k < lanes.value; ++k) sum += SwigluOf(a.rule.Gate(g[k]), a.rule.Up(u[k]), s[k]) * dy[k];
      Store(dgate + i, Each(lanes, [&](int k) { return a.rule.Gradient(g[k], u[k], weight * dy[k], s[k]).gate; }));
      Store(dup + i, Each(lanes, [&](int k) { return a.rule.Gradient(g[k], u[k], weight * dy[k], s[k]).up; }));
    });
    sum = BlockSum(sum);
    if (threadIdx.x == 0) a.dweights[r] = sum;
  });
}

}  // namespace

void WeightedSwiglu(const WeightedSwigluArgs& a, const LaunchContext& context) {
  if (a.group.rows * a.width == 0) return;
  ForPacks(a.y.dtype, a.width, AreAligned(a.gate.data, a.up.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(WeightedSwigluKernel<T, lanes.value>, RowBlocks(a.group.rows), RowThreads(a.width, lanes), 0, context.stream,
           a);
  });
}

void WeightedSwigluGrad(const WeightedSwigluGradArgs& a, const LaunchContext& context) {
  if (a.group.rows == 0) return;
  ForPacks(a.dgate.dtype, a.width, AreAligned(a.gate.data, a.up.data, a.dy.data, a.dgate.data, a.dup.data),
           [&]<typename T>(T, auto lanes) {
             Launch(WeightedSwigluGradKernel<T, lanes.value>, RowBlocks(a.group.rows), RowThreads(a.width, lanes), 0,
                    context.stream, a);
           });
}

}  // namespace espalier::cuda
