// Ops that run once per step. Numbers that change from step to step are read on the device, so that one captured graph
// works for all steps.
#include <algorithm>

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"
#include "kernels/cuda/runtime/rounding.cuh"

namespace espalier::cuda {
namespace {

/// For matrix blockIdx.y.
template <int N>
__global__ void SumSquaresPartials(const float* gradients, int64_t n, double* partials) {
  const float* g = gradients + blockIdx.y * n;
  double sum = 0;
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    const auto x = Load(g + i, lanes);
    for (int k = 0; k < lanes.value; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  });
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/// A block for each matrix; it has at least as many threads as there are partial sums of the matrix.
__global__ void __launch_bounds__(1024) AddSquares(const double* partials, int64_t count, float* out) {
  const double sum = BlockSum(threadIdx.x < count ? partials[blockIdx.x * count + threadIdx.x] : 0.0);
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(sum);
}

constexpr int kMaxScalars = 256;

/// Some of the scalars that `clip` or `mean` adds, from index `first` on.
struct Scalars {
  const float* pointers[kMaxScalars];
  int count, first;
};

/// Adds the scalars to the result of the previous launches, in order; the first launch starts from zero. One block with
/// a thread per scalar: all are read in parallel and added one by one.
__global__ void AddScalars(Scalars scalars, ClipSquares* squares) {
  __shared__ float values[kMaxScalars];
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

/// Operands of `clip` except the squares; all f32[]. Operands that the op lacks are nullptr.
struct ClipScalars {
  const float *loss, *count, *loss_limit, *norm_limit;
  float *mean_loss, *norm, *scale, *apply, *first;
};

__global__ void ClipKernel(ClipScalars a, const ClipSquares* squares, double clip_norm) {
  const Clipped c = ClippedOf(static_cast<double>(*a.loss), static_cast<double>(*a.count), squares->sum, clip_norm);
  *a.mean_loss = static_cast<float>(c.mean);
  *a.norm = static_cast<float>(c.norm);
  *a.scale = static_cast<float>(c.scale);
  *a.apply = a.loss_limit == nullptr ? static_cast<float>(c.apply) : AppliesWithin(c, *a.loss_limit, *a.norm_limit);
  *a.first = static_cast<float>(squares->first_not_finite);
}

__global__ void MeanKernel(const ClipSquares* sum, const float* count, float* mean) {
  *mean = static_cast<float>(sum->sum / DivisorOf(*count));
}

/// A tensor of an AdamW launch, with moments of type M. bf16 moments are rounded stochastically.
template <typename M>
struct StateOf {
  float* master;
  M *exp_avg, *exp_avg_sq;
  const float* gradient;
  __nv_bfloat16* copy;
  int64_t n;
  WordStream rounding;
};
template <>
struct StateOf<float> {
  float *master, *exp_avg, *exp_avg_sq;
  const float* gradient;
  __nv_bfloat16* copy;
  int64_t n;
};

/// The argument of one AdamW launch, which may have 32,764 bytes since CUDA 12.1.
template <typename M>
struct AdamwTable {
  static constexpr int kMaxTensors = 32384 / (sizeof(StateOf<M>) + sizeof(int32_t));
  StateOf<M> tensors[kMaxTensors];
  int32_t first_tile[kMaxTensors + 1];  ///< first tile of each tensor, counted over all; at the end, the number of
                                        ///< tiles
  int32_t count, decaying;              ///< tensors, and how many of them, from the first, decay
  AdamwConstants constants;
  const float *lr, *step, *scale, *apply;  ///< f32[]
};
static_assert(sizeof(AdamwTable<float>) <= 32764 && sizeof(AdamwTable<__nv_bfloat16>) <= 32764);

struct Math {
  __device__ static float Root(float x) { return sqrtf(x); }
  __device__ static float Product(float a, float b) { return __fmul_rn(a, b); }
};

/// Elements of a tensor that a block updates at a time.
constexpr int64_t kTile = 4096;
/// fp32 elements of a pack. nvcc 13 refuses kPack<float> as a constant once a kernel template has named it.
constexpr int kFloats = kPack<float>;

template <int N, typename M>
__device__ void UpdateAt(const StateOf<M>& a, int64_t i, const AdamwFactors& f, uint32_t step, Lanes<N> lanes) {
  const auto g = Load(a.gradient + i, lanes);
  auto p = Load(a.master + i, lanes), m = Load(a.exp_avg + i, lanes), v = Load(a.exp_avg_sq + i, lanes);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const AdamwState<float> next = AdamwOf<Math, float>(f, {p[k], m[k], v[k]}, g[k]);
    p[k] = next.master;
    m[k] = next.exp_avg;
    v[k] = next.exp_avg_sq;
  }
  if constexpr (std::is_same_v<M, float>) {
    Store(a.exp_avg + i, m);
    Store(a.exp_avg_sq + i, v);
  } else {
    const auto words = RandomWords(a.rounding, step, i, lanes);
    StoreRounded(a.exp_avg + i, m, words, 0);
    StoreRounded(a.exp_avg_sq + i, v, words, 1);
  }
  Store(a.master + i, p);
  if (a.copy != nullptr) Store(a.copy + i, p);
}

/// The whole block updates elements [begin, end).
template <int N, typename M>
__device__ void UpdateRange(const StateOf<M>& a, int64_t begin, int64_t end, const AdamwFactors& f, uint32_t step) {
  const int64_t packs_end = begin + (end - begin) / N * N;
  for (int64_t i = begin + int64_t{threadIdx.x} * N; i < packs_end; i += int64_t{blockDim.x} * N)
    UpdateAt(a, i, f, step, Lanes<N>{});
  if constexpr (N > 1) UpdateRange<1>(a, packs_end, end, f, step);
}

/// The last tensor whose tiles begin at `tile` or before; an empty tensor has no tiles.
template <typename M>
__device__ int TensorOf(const AdamwTable<M>& table, int tile) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

template <typename M>
__device__ bool IsAligned(const StateOf<M>& a) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (address(a.master) | address(a.exp_avg) | address(a.exp_avg_sq) | address(a.gradient) | address(a.copy)) %
             16 ==
         0;
}

template <typename M>
__global__ void AdamwKernel(const __grid_constant__ AdamwTable<M> table) {
  __shared__ AdamwFactors factors[2];  // factors of tensors with decay, and of tensors without
  if (*table.apply == 0) return;       // true for all threads, or for none
  if (threadIdx.x < 2) {
    AdamwConstants constants = table.constants;
    if (threadIdx.x == 1) constants.weight_decay = 0;
    factors[threadIdx.x] =
        AdamwFactorsOf(constants, static_cast<double>(*table.lr), static_cast<double>(*table.step), *table.scale);
  }
  __syncthreads();
  const auto step = static_cast<uint32_t>(*table.step);
  const int tiles = table.first_tile[table.count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const int t = TensorOf(table, tile);
    const StateOf<M>& tensor = table.tensors[t];
    const AdamwFactors f = factors[t < table.decaying ? 0 : 1];
    const int64_t begin = (tile - table.first_tile[t]) * kTile,
                  end = begin + kTile < tensor.n ? begin + kTile : tensor.n;
    if (IsAligned(tensor))
      UpdateRange<kFloats>(tensor, begin, end, f, step);
    else
      UpdateRange<1>(tensor, begin, end, f, step);
  }
}

template <typename M>
StateOf<M> StateFrom(const AdamwTensor& t) {
  StateOf<M> state{};
  state.master = t.master;
  state.exp_avg = t.exp_avg.As<M>();
  state.exp_avg_sq = t.exp_avg_sq.As<M>();
  state.gradient = t.gradient;
  state.copy = t.copy.As<__nv_bfloat16>();
  state.n = t.n;
  if constexpr (!std::is_same_v<M, float>) state.rounding = t.rounding;
  return state;
}

/// Some tensors of a call, from `first` on.
template <typename M>
void LaunchAdamw(const AdamwArgs& a, int first, int count, cudaStream_t stream) {
  AdamwTable<M> table;
  table.count = count;
  table.decaying = std::clamp(static_cast<int>(a.decaying) - first, 0, count);
  table.constants = a.constants;
  table.lr = a.lr, table.step = a.step, table.scale = a.scale, table.apply = a.apply;
  table.first_tile[0] = 0;
  for (int t = 0; t < count; ++t) {
    table.tensors[t] = StateFrom<M>(a.tensors[static_cast<size_t>(first + t)]);
    table.first_tile[t + 1] = table.first_tile[t] + static_cast<int32_t>((table.tensors[t].n + kTile - 1) / kTile);
  }
  const int tiles = table.first_tile[count];
  if (tiles > 0) Launch(AdamwKernel<M>, dim3(Clamped(tiles, 8192)), dim3(kThreads), 0, stream, table);
}

}  // namespace

void SumSquares(const SumSquaresArgs& a, const LaunchContext& context) {
  if (a.matrices == 0) return;
  Require(a.matrices <= kMaxMatrices, "sum_squares: more than 65535 matrices");
  const int64_t parts = SumSquaresParts(a.n);
  const auto matrices = static_cast<unsigned>(a.matrices);
  auto* partials = context.Workspace<double>(a.matrices * SumSquaresBytes(a.n));
  const bool packed = AreAligned(a.gradient) && (a.matrices == 1 || a.n % kPack<float> == 0);
  ForLanes<kPack<float>>(packed, [&](auto lanes) {
    Launch(SumSquaresPartials<lanes.value>, dim3(static_cast<unsigned>(parts), matrices), dim3(kThreads), 0,
           context.stream, a.gradient, a.n, partials);
  });
  Launch(AddSquares, dim3(matrices), RowThreads(parts, 1, 1024), 0, context.stream, partials, parts, a.sum);
}

/// Adds scalars, as many at a time as a launch takes, into workspace.
ClipSquares* AddAll(const std::vector<const float*>& terms, const LaunchContext& context) {
  auto* sum = context.Workspace<ClipSquares>(kClipBytes);
  size_t i = 0;
  do {
    Scalars scalars{};
    scalars.first = static_cast<int>(i);
    for (; i < terms.size() && scalars.count < kMaxScalars; ++i) scalars.pointers[scalars.count++] = terms[i];
    Launch(AddScalars, dim3(1), dim3(kMaxScalars), 0, context.stream, scalars, sum);
  } while (i < terms.size());
  return sum;
}

void Mean(const MeanArgs& a, const LaunchContext& context) {
  Launch(MeanKernel, dim3(1), dim3(1), 0, context.stream, AddAll(a.sums, context), a.count, a.mean);
}

void Clip(const ClipArgs& a, const LaunchContext& context) {
  const ClipSquares* squares = AddAll(a.squares, context);
  const ClipScalars scalars{a.loss, a.count, a.loss_limit, a.norm_limit, a.mean_loss,
                            a.norm, a.scale, a.apply,      a.first};
  Launch(ClipKernel, dim3(1), dim3(1), 0, context.stream, scalars, squares, a.clip_norm);
}

void Adamw(const AdamwArgs& a, const LaunchContext& context) {
  const int tensors = static_cast<int>(a.tensors.size());
  if (tensors == 0) return;
  ForElementType(a.tensors[0].exp_avg.dtype, [&]<typename M>(M) {
    constexpr int kMax = AdamwTable<M>::kMaxTensors;
    for (int first = 0; first < tensors; first += kMax)
      LaunchAdamw<M>(a, first, std::min(tensors - first, kMax), context.stream);
  });
}

}  // namespace espalier::cuda
