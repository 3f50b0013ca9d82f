// A block takes a row: it is read twice, the second time from the first-level cache.
#include "addend.cuh"
#include "column_sums.cuh"
#include "norm.hpp"
#include "reduce.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void RmsNorm(Summands<T> in, const T* weight, float eps, int64_t rows, int64_t width, T* y, float* rstd) {
  ForRows(rows, [&](int64_t r) {
    const T* row = in.Loaded() + r * width;
    float squares = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = in.Load(r * width + c, lanes);
      for (int k = 0; k < N; ++k) squares += v[k] * v[k];
    });
    const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(width) + eps);
    if (threadIdx.x == 0) rstd[r] = scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return w[k] * Rounded<T>(v[k] * scale); }));
    });
  });
}

// dx = rstd (w dy - xhat mean(w dy xhat)), plus the addend
template <typename T, int N>
__global__ void RmsNormGrad(const T* x, const T* weight, const float* rstd, const T* adjoint, const T* addend,
                            int64_t rows, int64_t width, T* dx) {
  ForRows(rows, [&](int64_t r) {
    const T *row = x + r * width, *dy = adjoint + r * width;
    float sum = 0;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      for (int k = 0; k < N; ++k) sum += w[k] * g[k] * v[k];
    });
    const float scale = rstd[r], factor = BlockSum(sum) / static_cast<float>(width) * scale * scale;
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes), w = Load(weight + c, lanes), g = Load(dy + c, lanes);
      StoreWith(addend, dx, r * width + c, Each(lanes, [&](int k) { return scale * (w[k] * g[k] - v[k] * factor); }),
                lanes);
    });
  });
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

void LaunchRmsNorm(Dtype dtype, const void* x, const void* w, const void* addend, float eps, int64_t rows,
                   int64_t width, void* y, float* rstd, void* sum, cudaStream_t stream) {
  if (rows == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, w, addend, y, sum), [&](auto lanes) {
      const Summands<T> in{static_cast<const T*>(x), static_cast<const T*>(addend), static_cast<T*>(sum)};
      Launch(RmsNorm<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream, in,
             static_cast<const T*>(w), eps, rows, width, static_cast<T*>(y), rstd);
    });
  });
}

void LaunchRmsNormGrad(Dtype dtype, const void* x, const void* w, const float* rstd, const void* dy, const void* addend,
                       int64_t rows, int64_t width, void* dx, cudaStream_t stream) {
  if (rows == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, w, dy, addend, dx), [&](auto lanes) {
      Launch(RmsNormGrad<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream,
             static_cast<const T*>(x), static_cast<const T*>(w), rstd, static_cast<const T*>(dy),
             static_cast<const T*>(addend), rows, width, static_cast<T*>(dx));
    });
  });
}

void LaunchRmsNormWeightGrad(Dtype dtype, const void* x, const float* rstd, const void* dy, int64_t rows, int64_t width,
                             float* dw, bool add, float* workspace, cudaStream_t stream) {
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, dy), [&](auto lanes) {
      const WeightTerm<T> term{static_cast<const T*>(x), rstd, static_cast<const T*>(dy), width};
      LaunchColumnSums<1, lanes.value>(term, rows, width, {{dw}, add, workspace}, stream);
    });
  });
}

}  // namespace espalier::cuda
