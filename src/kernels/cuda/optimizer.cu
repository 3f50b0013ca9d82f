#include "espalier/device_memory/partial_sums.hpp"
#include "optimizer.hpp"
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
__global__ void __launch_bounds__(1024) AddSquares(const double* parts, int64_t count, float* out) {
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

/// Elements of a tensor that a block updates at a time.
constexpr int64_t kTile = 4096;

template <int N>
__device__ void UpdateAt(const AdamwTensor& a, int64_t i, const AdamwFactors& f, Lanes<N> lanes) {
  const auto g = Load(a.gradient + i, lanes);
  auto p = Load(a.master + i, lanes), m = Load(a.exp_avg + i, lanes), v = Load(a.exp_avg_sq + i, lanes);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const AdamwState<float> next = AdamwOf<float>(f, {p[k], m[k], v[k]}, g[k], Root{});
    p[k] = next.master;
    m[k] = next.exp_avg;
    v[k] = next.exp_avg_sq;
  }
  Store(a.exp_avg + i, m);
  Store(a.exp_avg_sq + i, v);
  Store(a.master + i, p);
}

/// Elements [begin, end), by the whole block.
template <int N>
__device__ void UpdateRange(const AdamwTensor& a, int64_t begin, int64_t end, const AdamwFactors& f) {
  const int64_t packs_end = begin + (end - begin) / N * N;
  for (int64_t i = begin + int64_t{threadIdx.x} * N; i < packs_end; i += int64_t{blockDim.x} * N)
    UpdateAt(a, i, f, Lanes<N>{});
  if constexpr (N > 1) UpdateRange<1>(a, packs_end, end, f);
}

/// The last tensor whose tiles begin at `tile` or before; one without elements has none.
__device__ int TensorOf(const AdamwTable& table, int tile) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

__device__ bool LiesAtPacks(const AdamwTensor& a) {
  const auto address = [](const float* p) { return reinterpret_cast<uintptr_t>(p); };
  return (address(a.master) | address(a.exp_avg) | address(a.exp_avg_sq) | address(a.gradient)) % 16 == 0;
}

__global__ void Adamw(const __grid_constant__ AdamwTable table) {
  __shared__ AdamwFactors factors[2];  // of tensors that decay, and of those that do not
  if (*table.apply == 0) return;       // all threads, or none
  if (threadIdx.x < 2) {
    AdamwConstants constants = table.constants;
    if (threadIdx.x == 1) constants.weight_decay = 0;
    factors[threadIdx.x] =
        AdamwFactorsOf(constants, static_cast<double>(*table.lr), static_cast<double>(*table.step), *table.scale);
  }
  __syncthreads();
  const int tiles = table.first_tile[table.count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const int t = TensorOf(table, tile);
    const AdamwTensor& tensor = table.tensors[t];
    const AdamwFactors f = factors[t < table.decaying ? 0 : 1];
    const int64_t begin = (tile - table.first_tile[t]) * kTile,
                  end = begin + kTile < tensor.n ? begin + kTile : tensor.n;
    if (LiesAtPacks(tensor))
      UpdateRange<kPack<float>>(tensor, begin, end, f);
    else
      UpdateRange<1>(tensor, begin, end, f);
  }
}

}  // namespace

void LaunchSumSquares(const float* g, int64_t n, float* out, double* workspace, cudaStream_t stream) {
  const int64_t parts = SumSquaresParts(n);
  ForLanes<kPack<float>>(LieAtPacks(g), [&](auto lanes) {
    Launch(SumSquaresOfParts<lanes.value>, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, stream, g, n,
           workspace);
  });
  Launch(AddSquares, dim3(1), RowThreads(parts, 1, 1024), 0, stream, workspace, parts, out);
}

void LaunchAddScalars(const Scalars& scalars, ClipSquares* squares, cudaStream_t stream) {
  Launch(AddScalars, dim3(1), dim3(kMostScalars), 0, stream, scalars, squares);
}

void LaunchClip(const ClipArrays& arrays, const ClipSquares* squares, double clip_norm, cudaStream_t stream) {
  Launch(Clip, dim3(1), dim3(1), 0, stream, arrays, squares, clip_norm);
}

void LaunchAdamw(AdamwTable& table, cudaStream_t stream) {
  table.first_tile[0] = 0;
  for (int t = 0; t < table.count; ++t)
    table.first_tile[t + 1] = table.first_tile[t] + static_cast<int32_t>((table.tensors[t].n + kTile - 1) / kTile);
  const int tiles = table.first_tile[table.count];
  if (tiles > 0) Launch(Adamw, dim3(Clamped(tiles, 8192)), dim3(kThreads), 0, stream, table);
}

}  // namespace espalier::cuda
