#include "bias.hpp"
#include "column_sums.cuh"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void AddBias(const T* x, const T* bias, int64_t rows, int64_t width, T* y) {
  ForRows(rows, [&](int64_t r) {
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + r * width + c, lanes), b = Load(bias + c, lanes);
      Store(y + r * width + c, Each(lanes, [&](int k) { return v[k] + b[k]; }));
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

void LaunchAddBias(Dtype dtype, const void* x, const void* bias, int64_t rows, int64_t width, void* y,
                   cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(x, bias, y), [&](auto lanes) {
      Launch(AddBias<T, lanes.value>, RowBlocks(rows), RowThreads(width, lanes), 0, stream, static_cast<const T*>(x),
             static_cast<const T*>(bias), rows, width, static_cast<T*>(y));
    });
  });
}

void LaunchBiasGrad(Dtype dtype, const void* dy, int64_t rows, int64_t width, float* out, bool add, float* workspace,
                    cudaStream_t stream) {
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(width % kPack<T> == 0 && LieAtPacks(dy), [&](auto lanes) {
      LaunchColumnSums<1, lanes.value>(Term<T>{static_cast<const T*>(dy), width}, rows, width, {{out}, add, workspace},
                                       stream);
    });
  });
}

}  // namespace espalier::cuda
