#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void GeluKernel(GeluArgs a) {
  const T* x = a.x.As<T>();
  T* y = a.y.As<T>();
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto v = Load(x + i, lanes);
    Store(y + i, Each(lanes, [&](int k) { return v[k] * GeluGateOf(v[k]).sigmoid; }));
  });
}

template <typename T, int N>
__global__ void GeluGradKernel(GeluGradArgs a) {
  const T *x = a.x.As<T>(), *adjoint = a.dy.As<T>();
  T* dx = a.dx.As<T>();
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto v = Load(x + i, lanes), dy = Load(adjoint + i, lanes);
    Store(dx + i, Each(lanes, [&](int k) {
            const GeluGate gate = GeluGateOf(v[k]);
            return dy[k] * (gate.sigmoid + v[k] * gate.slope);
          }));
  });
}

}  // namespace

void Gelu(const GeluArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(AreAligned(a.x.data, a.y.data), [&](auto lanes) {
      Launch(GeluKernel<T, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
    });
  });
}

void GeluGrad(const GeluGradArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.dx.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(AreAligned(a.x.data, a.dy.data, a.dx.data), [&](auto lanes) {
      Launch(GeluGradKernel<T, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
    });
  });
}

}  // namespace espalier::cuda
