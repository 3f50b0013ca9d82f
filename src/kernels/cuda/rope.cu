#include "kernels/arithmetic.hpp"
#include "pack.cuh"
#include "rope.hpp"

namespace espalier::cuda {
namespace {

template <typename T, int N>
__global__ void Rope(const T* x, const float* table, float sign, int64_t rows, int64_t positions, int64_t width,
                     int64_t half, T* y) {
  constexpr Lanes<N> lanes;
  ForRows(rows, [&](int64_t r) {
    const float *cosines = table + r % positions * 2 * half, *sines = cosines + half;
    for (int64_t pair = int64_t{threadIdx.x} * N; pair < width / 2; pair += int64_t{blockDim.x} * N) {
      const int64_t i = pair % half, at = r * width + (pair - i) * 2 + i;
      const auto c = Load(cosines + i, lanes), s = Load(sines + i, lanes), x0 = Load(x + at, lanes),
                 x1 = Load(x + at + half, lanes);
      Store(y + at, Each(lanes, [&](int k) { return RotatedOf(x0[k], x1[k], c[k], sign * s[k]).x0; }));
      Store(y + at + half, Each(lanes, [&](int k) { return RotatedOf(x0[k], x1[k], c[k], sign * s[k]).x1; }));
    }
  });
}

// Rounded from fp64, once a step.
__global__ void RopeTable(const int32_t* positions, int64_t count, double theta, int64_t head_dim, float* table) {
  const int64_t half = head_dim / 2;
  ForElements<1>(count * half, [&](int64_t n, auto) {
    const int64_t s = n / half, i = n % half;
    const double angle = static_cast<float>(positions[s]) * RopeFrequency(theta, head_dim, i);
    table[s * head_dim + i] = static_cast<float>(cos(angle));
    table[s * head_dim + half + i] = static_cast<float>(sin(angle));
  });
}

}  // namespace

void LaunchRope(Dtype dtype, const void* x, const float* table, float sign, int64_t rows, int64_t positions,
                int64_t width, int64_t half, void* y, cudaStream_t stream) {
  if (rows * width == 0) return;
  ForElementType(dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(half % kPack<T> == 0 && LieAtPacks(x, table, y), [&](auto lanes) {
      Launch(Rope<T, lanes.value>, RowBlocks(rows), RowThreads(width / 2, lanes), 0, stream, static_cast<const T*>(x),
             table, sign, rows, positions, width, half, static_cast<T*>(y));
    });
  });
}

void LaunchRopeTable(const int32_t* positions, int64_t count, double theta, int64_t head_dim, float* table,
                     cudaStream_t stream) {
  const int64_t n = count * (head_dim / 2);
  if (n == 0) return;
  Launch(RopeTable, ElementBlocks(n, 1), dim3(kThreads), 0, stream, positions, count, theta, head_dim, table);
}

}  // namespace espalier::cuda
