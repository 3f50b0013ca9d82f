// One block per row of the vocabulary, of any length and alignment: single elements up to the first 16-byte boundary,
// packs, and single elements after the last pack. The loss with its gradient passes over a row three times: for the
// largest logit, for the sum of exponentials, and to write the gradient. Shared memory keeps as much of the row as fits
// (50304 bf16 are 100 KB, so a multiprocessor holds two rows); the rest is read again.
#include <algorithm>

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/quick.cuh"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

/// The largest number of threads for which two blocks fit on a multiprocessor.
constexpr int kRowThreads = 1024;
// A multiprocessor holds 2,048 threads, but 1,536 on 8.6, 8.9 and from 11.0 on.
#if defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1100)
constexpr int kRowBlocks = 1;
#else
constexpr int kRowBlocks = 2;
#endif

/// Calls f(c, lanes) for all columns of a row at `row` that is also written at `other`.
template <typename T, typename F>
__device__ void ForRow(const T* row, const T* other, int64_t width, F f) {
  constexpr int N = kPack<T>;
  const auto at = reinterpret_cast<uintptr_t>(row) % 16, other_at = reinterpret_cast<uintptr_t>(other) % 16;
  const int64_t single = (16 - at) % 16 / sizeof(T), head = at != other_at || width < single ? width : single,
                packs = (width - head) / N;
  for (int64_t c = threadIdx.x; c < head; c += blockDim.x) f(c, Lanes<1>{});
  for (int64_t p = threadIdx.x; p < packs; p += blockDim.x) f(head + p * N, Lanes<N>{});
  const int64_t last = head + packs * N + threadIdx.x;
  if (last < width) f(last, Lanes<1>{});
}

/// The result is for every thread of the block.
template <typename T>
__device__ float LargestOfRow(const T* row, int64_t width) {
  float max = -INFINITY;
  ForRow(row, row, width, [&](int64_t c, auto lanes) {
    const auto v = Load(row + c, lanes);
    for (int k = 0; k < lanes.value; ++k) max = Larger{}(v[k], max);
  });
  return BlockReduce(max, -INFINITY, Larger{});
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) LogitsMaxKernel(LogitsMaxArgs a) {
  const T* x = a.logits.x.As<T>();
  const int64_t width = a.logits.width;
  ForRows(a.logits.rows, [&](int64_t r) {
    const float max = LargestOfRow(x + r * width, width);
    if (threadIdx.x == 0) a.max[r] = max;
  });
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) LogitsSumKernel(LogitsSumArgs a) {
  const T* x = a.logits.x.As<T>();
  const int64_t width = a.logits.width;
  ForRows(a.logits.rows, [&](int64_t r) {
    const T* row = x + r * width;
    const float max = a.max == nullptr ? LargestOfRow(row, width) : a.max[r];  // the second read comes from the cache
    float sum = 0;
    ForRow(row, row, width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      for (int k = 0; k < lanes.value; ++k) sum += ExpFor<T>(v[k] - max);
    });
    sum = BlockSum(sum);
    if (threadIdx.x != 0) return;
    const int64_t target = a.targets[r] - a.logits.first;
    if (a.max == nullptr) a.found_max[r] = max;
    a.sum[r] = sum;
    a.target[r] = target >= 0 && target < width ? Widen(row[target]) : 0.0f;
  });
}

/// Partial sums: all losses, then all counts, then the z-losses if there are any.
__global__ void TokenLossPartials(TokenLossArgs a, double* partials) {
  const int64_t part = blockIdx.x, parts = gridDim.x;
  double loss = 0, count = 0, z = 0;
  for (int64_t r = a.rows * part / parts + threadIdx.x; r < a.rows * (part + 1) / parts; r += blockDim.x) {
    if (a.targets[r] < 0) continue;
    loss += TokenLossOf(a.max[r], a.sum[r], a.target[r]);
    count += 1;
    const double log_z = LogZOf(a.max[r], a.sum[r]);
    z += a.z_loss * log_z * log_z;
  }
  loss = BlockSum(loss);
  count = BlockSum(count);
  if (a.z != nullptr) z = BlockSum(z);
  if (threadIdx.x != 0) return;
  partials[part] = loss;
  partials[parts + part] = count;
  if (a.z != nullptr) partials[2 * parts + part] = z;
}

/// One block; it has at least as many threads as there are partial sums of each kind.
__global__ void AddTokenLosses(TokenLossArgs a, const double* partials, int64_t parts) {
  const bool mine = threadIdx.x < parts;
  const double losses = BlockSum(mine ? partials[threadIdx.x] : 0.0),
               tokens = BlockSum(mine ? partials[parts + threadIdx.x] : 0.0),
               z = BlockSum(mine && a.z != nullptr ? partials[2 * parts + threadIdx.x] : 0.0);
  if (threadIdx.x != 0) return;
  *a.loss = static_cast<float>((a.accumulate ? static_cast<double>(*a.loss) : 0.0) + losses);
  *a.count = static_cast<float>((a.accumulate ? static_cast<double>(*a.count) : 0.0) + tokens);
  if (a.z != nullptr) *a.z = static_cast<float>((a.accumulate ? static_cast<double>(*a.z) : 0.0) + z);
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) CrossEntropyGradKernel(CrossEntropyGradArgs a) {
  const T* x = a.logits.x.As<T>();
  T* dx = a.dlogits.As<T>();
  const int64_t width = a.logits.width, first = a.logits.first;
  ForRows(a.logits.rows, [&](int64_t r) {
    const T* row = x + r * width;
    T* to = dx + r * width;
    const int64_t target = a.targets[r];
    const float max = a.max[r], factor = SoftmaxFactorOf(max, a.sum[r], a.z_loss, a.weight);
    ForRow(row, static_cast<const T*>(to), width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      Store(to + c, Each(lanes, [&](int k) {
              const float p = ExpFor<T>(v[k] - max) * factor;
              return target < 0 ? 0.0f : first + c + k == target ? p - a.weight : p;
            }));
    });
  });
}

/// A row of logits whose first columns are kept in shared memory.
template <typename T>
class KeptRow {
 public:
  /// `shared` has room for `room` elements and, since a row may begin anywhere in 16 bytes, for kPack<T> more.
  __device__ KeptRow(const T* row, int64_t width, T* shared, int64_t room)
      : row_(row), kept_(shared + reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T)), columns_(width) {
    constexpr int64_t N = kPack<T>;
    const int64_t head = (16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T);
    if (width > room) columns_ = head + (room - head) / N * N;  // whole packs of ForRow
  }

  /// From memory, into shared memory.
  template <int N>
  __device__ Floats<N> Keep(int64_t c, Lanes<N> lanes) const {
    CheckAligned(row_ + c, alignof(Pack<T, N>));
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(row_ + c);
    if (c < columns_) *reinterpret_cast<Pack<T, N>*>(kept_ + c) = pack;
    return Each(lanes, [&](int k) { return Widen(pack.values[k]); });
  }
  template <int N>
  __device__ Floats<N> Load(int64_t c, Lanes<N> lanes) const {
    return cuda::Load((c < columns_ ? kept_ : row_) + c, lanes);
  }

 private:
  const T* row_;
  T* kept_;
  int64_t columns_;
};

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) CrossEntropyKernel(CrossEntropyArgs a, int64_t room) {
  SHARED_ARRAY(T, shared);
  const T* x = a.logits.x.As<T>();
  T* dx = a.dlogits.As<T>();
  const int64_t width = a.logits.width, first = a.logits.first;
  ForRows(a.logits.rows, [&](int64_t r) {
    const T* row = x + r * width;
    T* to = dx + r * width;
    const KeptRow<T> kept(row, width, shared, room);
    float max = -INFINITY, sum = 0;
    ForRow(row, row, width, [&](int64_t c, auto lanes) {
      const auto v = kept.Keep(c, lanes);
      for (int k = 0; k < lanes.value; ++k) max = Larger{}(v[k], max);
    });
    max = BlockReduce(max, -INFINITY, Larger{});
    ForRow(row, row, width, [&](int64_t c, auto lanes) {
      const auto v = kept.Load(c, lanes);
      for (int k = 0; k < lanes.value; ++k) sum += ExpFor<T>(v[k] - max);
    });
    sum = BlockSum(sum);
    const int64_t target = a.targets[r], column = target - first;
    if (threadIdx.x == 0) {
      a.max[r] = max;
      a.sum[r] = sum;
      a.target[r] = column >= 0 && column < width ? Widen(row[column]) : 0.0f;
    }
    __syncthreads();  // the target's logit has been read
    const float factor = SoftmaxFactorOf(max, sum, a.z_loss, a.weight);
    ForRow(row, static_cast<const T*>(to), width, [&](int64_t c, auto lanes) {
      const auto v = kept.Load(c, lanes);
      Store(to + c, Each(lanes, [&](int k) {
              const float p = ExpFor<T>(v[k] - max) * factor;
              return target < 0 ? 0.0f : c + k == column ? p - a.weight : p;
            }));
    });
    __syncthreads();  // the row in shared memory has been read
  });
}

template <typename T>
dim3 ThreadsOf(const LogitsShard& logits) {
  return RowThreads(logits.width, kPack<T>, kRowThreads);
}

}  // namespace

void LogitsMax(const LogitsMaxArgs& a, const LaunchContext& context) {
  if (a.logits.rows == 0) return;
  ForElementType(a.logits.x.dtype, [&]<typename T>(T) {
    Launch(LogitsMaxKernel<T>, RowBlocks(a.logits.rows), ThreadsOf<T>(a.logits), 0, context.stream, a);
  });
}

void LogitsSum(const LogitsSumArgs& a, const LaunchContext& context) {
  if (a.logits.rows == 0) return;
  ForElementType(a.logits.x.dtype, [&]<typename T>(T) {
    Launch(LogitsSumKernel<T>, RowBlocks(a.logits.rows), ThreadsOf<T>(a.logits), 0, context.stream, a);
  });
}

void TokenLoss(const TokenLossArgs& a, const LaunchContext& context) {
  const int64_t parts = TokenLossParts(a.rows);
  auto* partials = context.Workspace<double>(TokenLossBytes(a.rows, a.z != nullptr ? 3 : 2));
  Launch(TokenLossPartials, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, context.stream, a, partials);
  Launch(AddTokenLosses, dim3(1), dim3(128), 0, context.stream, a, partials, parts);
}

void CrossEntropyGrad(const CrossEntropyGradArgs& a, const LaunchContext& context) {
  if (a.logits.rows * a.logits.width == 0) return;
  ForElementType(a.logits.x.dtype, [&]<typename T>(T) {
    Launch(CrossEntropyGradKernel<T>, RowBlocks(a.logits.rows), ThreadsOf<T>(a.logits), 0, context.stream, a);
  });
}

void CrossEntropy(const CrossEntropyArgs& a, const LaunchContext& context) {
  if (a.logits.rows == 0) return;
  ForElementType(a.logits.x.dtype, [&]<typename T>(T) {
    const auto most = static_cast<int64_t>(MostSharedBytes() / sizeof(T)) - kPack<T>;
    const int64_t room = std::min(a.logits.width, most);
    Launch(CrossEntropyKernel<T>, RowBlocks(a.logits.rows), ThreadsOf<T>(a.logits),
           static_cast<size_t>(room + kPack<T>) * sizeof(T), context.stream, a, room);
  });
}

}  // namespace espalier::cuda
