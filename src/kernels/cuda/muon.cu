// Muon's element-wise steps (Jordan et al. 2024; as torch.optim.Muon). An element's inputs are read before its outputs
// are written. __fmul_rn rounds a product before it is added, so that the compiler does not choose which one it fuses.
// Numbers that change from step to step are read on the device, so that one captured graph works for all steps.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/rounding.cuh"

namespace espalier::cuda {
namespace {

template <typename M, int N>
__global__ void MuonDirectionKernel(MuonDirectionArgs a) {
  const bool apply = *a.apply != 0;  // otherwise the gradient may be infinite
  const float beta = static_cast<float>(a.beta), lerp = static_cast<float>(1 - a.beta), scale = *a.scale;
  M* const moment = a.momentum.As<M>();
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto before = Load(moment + i, lanes);
    if (!apply) return Store(a.direction + i, before);
    const auto gradient = Load(a.gradient + i, lanes);
    const auto g = Each(lanes, [&](int k) { return __fmul_rn(gradient[k], scale); });
    const auto momentum = Each(lanes, [&](int k) { return before[k] + lerp * (g[k] - before[k]); });
    Store(a.direction + i,
          Each(lanes, [&](int k) { return a.nesterov ? g[k] + beta * (momentum[k] - g[k]) : momentum[k]; }));
    if constexpr (std::is_same_v<M, float>) {
      Store(moment + i, momentum);
    } else {
      const auto step = static_cast<uint32_t>(*a.step);
      StoreRounded(moment + i, momentum, RandomWords(a.rounding, step, i, lanes), 0);
    }
  });
}

/// Matrix blockIdx.y.
template <typename T, int N>
__global__ void NormalizeKernel(NormalizeArgs a) {
  const double norm = sqrt(static_cast<double>(a.squares[blockIdx.y]));
  const auto inverse = static_cast<float>(1 / (norm > a.eps ? norm : a.eps));
  const float* from = a.x + blockIdx.y * a.n;
  T* y = a.y.As<T>() + blockIdx.y * a.n;
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto x = Load(from + i, lanes);
    Store(y + i, Each(lanes, [&](int k) { return x[k] * inverse; }));
  });
}

template <typename T, int N>
__global__ void WeightedSumKernel(WeightedSumArgs a) {
  const auto alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  const T *x = a.x.As<T>(), *y = a.y.As<T>();
  T* z = a.z.As<T>();
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto u = Load(x + i, lanes), v = Load(y + i, lanes);
    Store(z + i, Each(lanes, [&](int k) { return alpha * u[k] + __fmul_rn(beta, v[k]); }));
  });
}

template <typename T, int N>
__global__ void MuonUpdateKernel(MuonUpdateArgs a) {
  if (*a.apply == 0) return;
  const double lr = *a.lr;
  const auto kept = static_cast<float>(1 - lr * a.weight_decay), step = static_cast<float>(lr * a.factor);
  const T* orthogonal = a.orthogonal.As<T>();
  __nv_bfloat16* copy = a.copy.As<__nv_bfloat16>();
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto master = Load(a.master + i, lanes), o = Load(orthogonal + i, lanes);
    const auto next = Each(lanes, [&](int k) { return master[k] * kept - __fmul_rn(step, o[k]); });
    Store(a.master + i, next);
    if (copy != nullptr) Store(copy + i, next);
  });
}

}  // namespace

void MuonDirection(const MuonDirectionArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.momentum.dtype, [&]<typename M>(M) {
    ForLanes<kPack<float>>(AreAligned(a.momentum.data, a.gradient, a.direction), [&](auto lanes) {
      Launch(MuonDirectionKernel<M, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
    });
  });
}

void Normalize(const NormalizeArgs& a, const LaunchContext& context) {
  if (a.matrices * a.n == 0) return;
  Require(a.matrices <= kMaxMatrices, "normalize: more than 65535 matrices");
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const bool packed = AreAligned(a.x, a.y.data) && (a.matrices == 1 || a.n % kPack<T> == 0);
    ForLanes<kPack<T>>(packed, [&](auto lanes) {
      const dim3 blocks(ElementBlocks(a.n, lanes).x, static_cast<unsigned>(a.matrices));
      Launch(NormalizeKernel<T, lanes.value>, blocks, dim3(kThreads), 0, context.stream, a);
    });
  });
}

void WeightedSum(const WeightedSumArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.z.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(AreAligned(a.x.data, a.y.data, a.z.data), [&](auto lanes) {
      Launch(WeightedSumKernel<T, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
    });
  });
}

void MuonUpdate(const MuonUpdateArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.orthogonal.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(AreAligned(a.master, a.copy.data, a.orthogonal.data), [&](auto lanes) {
      Launch(MuonUpdateKernel<T, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
    });
  });
}

}  // namespace espalier::cuda
