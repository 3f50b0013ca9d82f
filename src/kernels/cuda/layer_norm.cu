// A block takes a row: it is read three times, the second and third time from the first-level cache.
#include "addend.cuh"
#include "column_sums.cuh"
#include "layer_norm.hpp"
#include "reduce.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void LayerNorm(Summands<T> in, const T* weight, const T* bias, float eps, int64_t rows, int64_t width, T* y,
                          float* mean, float* rstd) {
  ForRows(rows, [&](int64_t r) {
    const T* row = in.Loaded() + r * width;
    float sum = 0, squares = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = in.Load(r * width + c, lanes);
      for (int k = 0; k < N; ++k) sum += v[k];
    });
    const float middle = BlockSum(sum) / static_cast<float>(width);
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      for (int k = 0; k < N; ++k) squares += (v[k] - middle) * (v[k] - middle);
    });
    const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(width) + eps);
    if (threadIdx.x == 0) {
      mean[r] = middle;
      rstd[r] = scale;
    }
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), b = Load(bias + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return w[k] * ((v[k] - middle) * scale) + b[k]; }));
    });
  });
}

// dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)), plus the addend
template <typename T, int N>
__global__ void LayerNormGrad(const T* x, const T* weight, const float* mean, const float* rstd, const T* adjoint,
                              const T* addend, int64_t rows, int64_t width, T* dx) {
  ForRows(rows, [&](int64_t r) {
    const T *row = x + r * width, *dy = adjoint + r * width;
    const float middle = mean[r], scale = rstd[r];
    float plain = 0, projected = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      for (int k = 0; k < N; ++k) {
        plain += w[k] * g[k];
        projected += w[k] * g[k] * (v[k] - middle);
      }
    });
    const float shift = BlockSum(plain) / static_cast<float>(width);
    const float factor = BlockSum(projected) / static_cast<float>(width) * scale * scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      StoreWith(addend, dx, r * width + c,
                Each(lanes, [&](int k) { return scale * (w[k] * g[k] - shift - (v[k] - middle) * factor); }), lanes);
    });
  });
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

void LaunchLayerNorm(Dtype dtype, const void* x, const void* w, const void* bias, const void* addend, float eps,
                     int64_t rows, int64_t width, void* y, float* mean, float* rstd, void* sum, cudaStream_t stream) {
  if (rows == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, w, bias, addend, y, sum), [&](auto lanes) {
      const Summands<T> in{static_cast<const T*>(x), static_cast<const T*>(addend), static_cast<T*>(sum)};
      Launch(LayerNorm<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream, in,
             static_cast<const T*>(w), static_cast<const T*>(bias), eps, rows, width, static_cast<T*>(y), mean, rstd);
    });
  });
}

void LaunchLayerNormGrad(Dtype dtype, const void* x, const void* w, const float* mean, const float* rstd,
                         const void* dy, const void* addend, int64_t rows, int64_t width, void* dx,
                         cudaStream_t stream) {
  if (rows == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, w, dy, addend, dx), [&](auto lanes) {
      Launch(LayerNormGrad<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream,
             static_cast<const T*>(x), static_cast<const T*>(w), mean, rstd, static_cast<const T*>(dy),
             static_cast<const T*>(addend), rows, width, static_cast<T*>(dx));
    });
  });
}

void LaunchLayerNormWeightGrad(Dtype dtype, const void* x, const float* mean, const float* rstd, const void* dy,
                               int64_t rows, int64_t width, float* dw, float* dbias, bool add, float* workspace,
                               cudaStream_t stream) {
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, dy), [&](auto lanes) {
      const WeightTerms<T> terms{static_cast<const T*>(x), mean, rstd, static_cast<const T*>(dy), width};
      LaunchColumnSums<2, lanes.value>(terms, rows, width, {{dw, dbias}, add, workspace}, stream);
    });
  });
}

}  // namespace espalier::cuda
