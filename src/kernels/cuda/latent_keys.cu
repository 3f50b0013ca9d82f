// Keys and values of multi-head latent attention. One block per row copies; the sum over the heads in the gradient has
// one thread per group of columns, which adds the heads in their order.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void LatentKeysKernel(LatentKeysArgs a) {
  const T *kv = a.kv.As<T>(), *shared = a.shared.As<T>();
  T *k = a.k.As<T>(), *v = a.v.As<T>();
  const int64_t key = a.nope + a.rope, both = a.nope + a.value;
  ForRows(a.rows, [&](int64_t r) {
    ForColumns<N>(a.heads * key, [&](int64_t n, auto lanes) {
      const int64_t h = n / key, c = n % key;
      Store(k + r * a.heads * key + n, c < a.nope ? Load(kv + (r * a.heads + h) * both + c, lanes)
                                                  : Load(shared + r * a.rope + c - a.nope, lanes));
    });
    ForColumns<N>(a.heads * a.value, [&](int64_t n, auto lanes) {
      const int64_t h = n / a.value, c = n % a.value;
      Store(v + r * a.heads * a.value + n, Load(kv + (r * a.heads + h) * both + a.nope + c, lanes));
    });
  });
}

template <typename T, int N>
__global__ void LatentKeysGradKernel(LatentKeysGradArgs a) {
  const T *dk = a.dk.As<T>(), *dv = a.dv.As<T>();
  T *dkv = a.dkv.As<T>(), *dshared = a.dshared.As<T>();
  const int64_t key = a.nope + a.rope, both = a.nope + a.value;
  ForRows(a.rows, [&](int64_t r) {
    ForColumns<N>(a.heads * both, [&](int64_t n, auto lanes) {
      const int64_t h = n / both, c = n % both;
      Store(dkv + r * a.heads * both + n, c < a.nope ? Load(dk + (r * a.heads + h) * key + c, lanes)
                                                     : Load(dv + (r * a.heads + h) * a.value + c - a.nope, lanes));
    });
    ForColumns<N>(a.rope, [&](int64_t c, auto lanes) {
      auto sum = Load(dk + r * a.heads * key + a.nope + c, lanes);
      for (int64_t h = 1; h < a.heads; ++h) {
        const auto x = Load(dk + (r * a.heads + h) * key + a.nope + c, lanes);
        sum = Each(lanes, [&](int i) { return sum[i] + x[i]; });
      }
      Store(dshared + r * a.rope + c, sum);
    });
  });
}

/// Whether heads begin at multiples of a pack.
template <typename T, typename Args>
bool FitsPacks(const Args& a) {
  return a.nope % kPack<T> == 0 && a.rope % kPack<T> == 0 && a.value % kPack<T> == 0;
}

}  // namespace

void LatentKeys(const LatentKeysArgs& a, const LaunchContext& context) {
  const int64_t width = a.heads * (a.nope + a.rope);
  if (a.rows * width == 0) return;
  ForElementType(a.kv.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(FitsPacks<T>(a) && AreAligned(a.kv.data, a.shared.data, a.k.data, a.v.data), [&](auto lanes) {
      Launch(LatentKeysKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(width, lanes), 0, context.stream, a);
    });
  });
}

void LatentKeysGrad(const LatentKeysGradArgs& a, const LaunchContext& context) {
  const int64_t width = a.heads * (a.nope + a.value);
  if (a.rows * width == 0) return;
  ForElementType(a.dk.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(FitsPacks<T>(a) && AreAligned(a.dk.data, a.dv.data, a.dkv.data, a.dshared.data),
                       [&](auto lanes) {
                         Launch(LatentKeysGradKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(width, lanes), 0,
                                context.stream, a);
                       });
  });
}

}  // namespace espalier::cuda
