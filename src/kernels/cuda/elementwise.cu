#include "elementwise.hpp"
#include "kernels/arithmetic.hpp"
#include "pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void Add(Terms terms, T* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    auto sum = Load(static_cast<const T*>(terms.pointers[0]) + i, lanes);
    for (int t = 1; t < terms.count; ++t) {
      const auto x = Load(static_cast<const T*>(terms.pointers[t]) + i, lanes);
      sum = Each(lanes, [&](int k) { return sum[k] + x[k]; });
    }
    Store(y + i, sum);
  });
}

template <int N>
__global__ void Accumulate(const float* x, float* y, int64_t n, bool add) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto term = Load(x + i, lanes);
    if (!add) return Store(y + i, term);
    const auto sum = Load(y + i, lanes);
    Store(y + i, Each(lanes, [&](int k) { return sum[k] + term[k]; }));
  });
}

template <typename T, int N>
__global__ void Swiglu(const T* gate, const T* up, T* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto g = Load(gate + i, lanes), u = Load(up + i, lanes);
    Store(y + i, Each(lanes, [&](int k) { return SwigluOf(g[k], u[k], SigmoidOf(g[k])); }));
  });
}

template <typename T, int N>
__global__ void SwigluGrad(const T* gate, const T* up, const T* adjoint, T* dgate, T* dup, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto g = Load(gate + i, lanes), u = Load(up + i, lanes), dy = Load(adjoint + i, lanes);
    const auto s = Each(lanes, [&](int k) { return SigmoidOf(g[k]); });
    Store(dgate + i, Each(lanes, [&](int k) { return SwigluGradOf(g[k], u[k], dy[k], s[k]).gate; }));
    Store(dup + i, Each(lanes, [&](int k) { return SwigluGradOf(g[k], u[k], dy[k], s[k]).up; }));
  });
}

template <typename From, typename To, int N>
__global__ void Cast(const From* x, To* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) { Store(y + i, Load(x + i, lanes)); });
}

bool LieAtPacks(const Terms& terms) {
  for (int t = 0; t < terms.count; ++t)
    if (!cuda::LieAtPacks(terms.pointers[t])) return false;
  return true;
}

}  // namespace

void LaunchAdd(Dtype dtype, const Terms& terms, void* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(LieAtPacks(terms) && cuda::LieAtPacks(y), [&](auto lanes) {
      Launch(Add<T, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream, terms, static_cast<T*>(y), n);
    });
  });
}

void LaunchAccumulate(const float* x, float* y, int64_t n, bool add, cudaStream_t stream) {
  if (n == 0) return;
  ForLanes<kPack<float>>(cuda::LieAtPacks(x, y), [&](auto lanes) {
    Launch(Accumulate<lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream, x, y, n, add);
  });
}

void LaunchSwiglu(Dtype dtype, const void* gate, const void* up, void* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(cuda::LieAtPacks(gate, up, y), [&](auto lanes) {
      Launch(Swiglu<T, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream, static_cast<const T*>(gate),
             static_cast<const T*>(up), static_cast<T*>(y), n);
    });
  });
}

void LaunchSwigluGrad(Dtype dtype, const void* gate, const void* up, const void* dy, void* dgate, void* dup, int64_t n,
                      cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(cuda::LieAtPacks(gate, up, dy, dgate, dup), [&](auto lanes) {
      Launch(SwigluGrad<T, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream,
             static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<const T*>(dy), static_cast<T*>(dgate),
             static_cast<T*>(dup), n);
    });
  });
}

void LaunchCast(Dtype from, Dtype to, const void* x, void* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  ForElementType(from, [&]<typename From>(From) {
    ForElementType(to, [&]<typename To>(To) {
      constexpr int kLanes = kPack < From >> kPack<To> ? kPack<From> : kPack<To>;
      ForLanes<kLanes>(cuda::LieAtPacks(x, y), [&](auto lanes) {
        Launch(Cast<From, To, lanes.value>, ElementBlocks(n, lanes), dim3(kThreads), 0, stream,
               static_cast<const From*>(x), static_cast<To*>(y), n);
      });
    });
  });
}

}  // namespace espalier::cuda
