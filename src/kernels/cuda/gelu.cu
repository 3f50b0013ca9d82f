#include "gelu.hpp"
#include "kernels/arithmetic.hpp"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void Gelu(const T* x, T* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto v = Load(x + i, lanes);
    Store(y + i, Each(lanes, [&](int k) { return v[k] * GeluGateOf(v[k]).sigmoid; }));
  });
}

template <typename T, int N>
__global__ void GeluGrad(const T* x, const T* adjoint, T* dx, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto v = Load(x + i, lanes), dy = Load(adjoint + i, lanes);
    Store(dx + i, Each(lanes, [&](int k) {
            const GeluGate gate = GeluGateOf(v[k]);
            return dy[k] * (gate.sigmoid + v[k] * gate.slope);
          }));
  });
}

}  // namespace

void LaunchGelu(Dtype dtype, const void* x, void* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(LieAtPacks(x, y), [&](auto lanes) {
      Launch(Gelu<T, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream, static_cast<const T*>(x),
             static_cast<T*>(y), n);
    });
  });
}

void LaunchGeluGrad(Dtype dtype, const void* x, const void* dy, void* dx, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(LieAtPacks(x, dy, dx), [&](auto lanes) {
      Launch(GeluGrad<T, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream, static_cast<const T*>(x),
             static_cast<const T*>(dy), static_cast<T*>(dx), n);
    });
  });
}

}  // namespace espalier::cuda
