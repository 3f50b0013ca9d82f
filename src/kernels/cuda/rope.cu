#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"

namespace espalier::cuda {
namespace {

/// Pairs that are neighbours are rotated one by one (N = 1).
template <typename T, int N>
__global__ void RopeKernel(RopeArgs a) {
  constexpr Lanes<N> lanes;
  const T* x = a.x.As<T>();
  T* y = a.y.As<T>();
  const float sign = a.sine_sign;
  const int64_t half = a.rope_dim / 2, apart = a.adjacent ? 1 : half, width = a.width,
                pairs = a.rotated / a.head_dim * half;
  ForRows(a.rows, [&](int64_t r) {
    const float *cosines = a.table + r % a.length * 2 * half, *sines = cosines + half;
    for (int64_t pair = int64_t{threadIdx.x} * N; pair < pairs; pair += int64_t{blockDim.x} * N) {
      const int64_t i = pair % half, at = r * width + pair / half * a.head_dim + a.first + (a.adjacent ? 2 * i : i);
      const auto c = Load(cosines + i, lanes), s = Load(sines + i, lanes), x0 = Load(x + at, lanes),
                 x1 = Load(x + at + apart, lanes);
      Store(y + at, Each(lanes, [&](int k) { return RotatedOf(x0[k], x1[k], c[k], sign * s[k]).x0; }));
      Store(y + at + apart, Each(lanes, [&](int k) { return RotatedOf(x0[k], x1[k], c[k], sign * s[k]).x1; }));
    }
    if (x == y) return;
    const int64_t kept = a.head_dim - a.rope_dim, in_heads = a.rotated / a.head_dim * kept;  // columns that stay
    for (int64_t n = threadIdx.x; n < in_heads + width - a.rotated; n += blockDim.x) {
      const int64_t in_head = n % (kept > 0 ? kept : 1), skipped = in_head < a.first ? 0 : a.rope_dim;
      const int64_t c = n < in_heads ? n / kept * a.head_dim + skipped + in_head : a.rotated + n - in_heads;
      y[r * width + c] = x[r * width + c];
    }
  });
}

// Rounded from fp64, once per step.
__global__ void RopeTableKernel(RopeTableArgs a) {
  const int64_t width = a.rule.head_dim, half = width / 2;
  ForElements<1>(a.length * half, [&](int64_t n, auto) {
    const int64_t s = n / half, i = n % half;
    const double angle = static_cast<float>(a.positions[s]) * RopeFrequency(a.rule, i);
    a.table[s * width + i] = static_cast<float>(a.rule.amplitude * cos(angle));
    a.table[s * width + half + i] = static_cast<float>(a.rule.amplitude * sin(angle));
  });
}

}  // namespace

void Rope(const RopeArgs& a, const LaunchContext& context) {
  if (a.rows * a.width == 0) return;
  ForElementType(a.x.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(
        !a.adjacent && a.first % kPack<T> == 0 && a.rope_dim / 2 % kPack<T> == 0 && a.head_dim % kPack<T> == 0 &&
            a.width % kPack<T> == 0 && AreAligned(a.x.data, a.table, a.y.data),
        [&](auto lanes) {
          Launch(RopeKernel<T, lanes.value>, RowBlocks(a.rows), RowThreads(a.width / 2, lanes), 0, context.stream, a);
        });
  });
}

void RopeTable(const RopeTableArgs& a, const LaunchContext& context) {
  const int64_t n = a.length * (a.rule.head_dim / 2);
  if (n > 0) Launch(RopeTableKernel, ElementBlocks(n, 1), dim3(kThreads), 0, context.stream, a);
}

}  // namespace espalier::cuda
