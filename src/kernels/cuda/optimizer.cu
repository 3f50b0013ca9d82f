#include "optimizer.hpp"

#include "kernels/partials.hpp"
#include "pack.cuh"
#include "reduce.cuh"

namespace espalier::cuda {
namespace {

template <int N>
__global__ void SumSquaresOfParts(const float* g, int64_t n, double* parts) {
  double sum = 0;
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto x = Load(g + i, lanes);
    for (int k = 0; k < lanes.value; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  });
  sum = BlockSum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// One block of at least as many threads as there are parts.
__global__ void AddSquares(const double* parts, int64_t count, float* out) {
  const double sum = BlockSum(threadIdx.x < count ? parts[threadIdx.x] : 0.0);
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

/// One block of a thread a scalar: all are read at once, and added one by one.
__global__ void AddScalars(Scalars scalars, ClipSquares* squares) {
  __shared__ float values[kMostScalars];
  if (static_cast<int>(threadIdx.x) < scalars.count) values[threadIdx.x] = *scalars.pointers[threadIdx.x];
  __syncthreads();
  if (threadIdx.x != 0) return;
  ClipSquares found = scalars.first > 0 ? *squares : ClipSquares{0, -1};
  for (int i = 0; i < scalars.count; ++i) {
    if (found.first_not_finite < 0 && !std::isfinite(values[i])) found.first_not_finite = scalars.first + i;
    found.sum += static_cast<double>(values[i]);
  }
  *squares = found;
}

__global__ void Clip(ClipArrays a, const ClipSquares* squares, double clip_norm) {
  const Clipped c = ClippedOf(static_cast<double>(*a.loss), static_cast<double>(*a.count), squares->sum, clip_norm);
  *a.mean = static_cast<float>(c.mean);
  *a.norm = static_cast<float>(c.norm);
  *a.scale = static_cast<float>(c.scale);
  *a.apply = static_cast<float>(c.apply);
  *a.first = static_cast<float>(squares->first_not_finite);
}

struct Root {
  __device__ float operator()(float x) const { return sqrtf(x); }
};

template <int N>
__global__ void Adamw(AdamwArrays a, AdamwConstants constants) {
  __shared__ AdamwFactors factors;
  if (*a.apply == 0) return;  // all threads, or none
  if (threadIdx.x == 0) factors = AdamwFactorsOf(constants, static_cast<double>(*a.lr), static_cast<double>(*a.step), *a.scale);
  __syncthreads();
  const AdamwFactors f = factors;
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto g = Load(a.gradient + i, lanes);
    auto p = Load(a.master + i, lanes), m = Load(a.exp_avg + i, lanes), v = Load(a.exp_avg_sq + i, lanes);
    for (int k = 0; k < lanes.value; ++k) {
      const AdamwState<float> next = AdamwOf<float>(f, {p[k], m[k], v[k]}, g[k], Root{});
      p[k] = next.master;
      m[k] = next.exp_avg;
      v[k] = next.exp_avg_sq;
    }
    Store(a.next_exp_avg + i, m);
    Store(a.next_exp_avg_sq + i, v);
    Store(a.next_master + i, p);
  });
}

}  // namespace

void LaunchSumSquares(const float* g, int64_t n, float* out, double* workspace, cudaStream_t stream) {
  const int64_t parts = SumSquaresParts(n);
  ForLanes<kPack<float>>(LieAtPacks(g), [&](auto lanes) {
    Launch(SumSquaresOfParts<lanes.value>, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, stream, g, n, workspace);
  });
  Launch(AddSquares, dim3(1), RowThreads(parts, 1, 1024), 0, stream, workspace, parts, out);
}

void LaunchAddScalars(const Scalars& scalars, ClipSquares* squares, cudaStream_t stream) {
  Launch(AddScalars, dim3(1), dim3(kMostScalars), 0, stream, scalars, squares);
}

void LaunchClip(const ClipArrays& arrays, const ClipSquares* squares, double clip_norm, cudaStream_t stream) {
  Launch(Clip, dim3(1), dim3(1), 0, stream, arrays, squares, clip_norm);
}

void LaunchAdamw(const AdamwArrays& a, const AdamwConstants& constants, cudaStream_t stream) {
  if (a.n == 0) return;
  const bool packed = LieAtPacks(a.master, a.exp_avg, a.exp_avg_sq, a.gradient, a.next_master, a.next_exp_avg, a.next_exp_avg_sq);
  ForLanes<kPack<float>>(packed, [&](auto lanes) {
    Launch(Adamw<lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, stream, a, constants);
  });
}

}  // namespace espalier::cuda
