// A block takes a row of the vocabulary, however long and wherever it begins: single elements up to the first 16-byte
// boundary, packs, and single elements behind the last.
#include "espalier/device_memory/partial_sums.hpp"
#include "kernels/arithmetic.hpp"
#include "loss.hpp"
#include "pack.cuh"
#include "reduce.cuh"

namespace espalier::cuda {
namespace {

/// The most, of which two blocks fit on a multiprocessor.
constexpr int kRowThreads = 1024;

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

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2) LogitsMax(const T* x, int64_t rows, int64_t width, float* largest) {
  ForRows(rows, [&](int64_t r) {
    const T* row = x + r * width;
    float most = -INFINITY;
    ForRow(row, row, width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      for (int k = 0; k < lanes.value; ++k) most = Larger{}(v[k], most);
    });
    most = BlockReduce(most, -INFINITY, Larger{});
    if (threadIdx.x == 0) largest[r] = most;
  });
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2)
    LogitsSum(const T* x, const float* largest, const int32_t* targets, int64_t rows, int64_t width, int64_t first,
              float* sum, float* target) {
  ForRows(rows, [&](int64_t r) {
    const T* row = x + r * width;
    const float most = largest[r];
    float part = 0;
    ForRow(row, row, width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      for (int k = 0; k < lanes.value; ++k) part += expf(v[k] - most);
    });
    part = BlockSum(part);
    if (threadIdx.x != 0) return;
    const int64_t at = targets[r] - first;
    sum[r] = part;
    target[r] = at >= 0 && at < width ? Widen(row[at]) : 0.0f;
  });
}

__global__ void TokenLossParts(const float* largest, const float* sum, const float* target, const int32_t* targets,
                               int64_t rows, double* parts) {
  const int64_t part = blockIdx.x, count_of_parts = gridDim.x;
  double loss = 0, count = 0;
  for (int64_t r = rows * part / count_of_parts + threadIdx.x; r < rows * (part + 1) / count_of_parts;
       r += blockDim.x) {
    if (targets[r] < 0) continue;
    loss += TokenLossOf(largest[r], sum[r], target[r]);
    count += 1;
  }
  loss = BlockSum(loss);
  count = BlockSum(count);
  if (threadIdx.x != 0) return;
  parts[part] = loss;
  parts[count_of_parts + part] = count;
}

/// One block of at least as many threads as there are parts.
__global__ void TokenLoss(const double* parts, int64_t count_of_parts, float* loss, float* count, bool add) {
  const bool mine = threadIdx.x < count_of_parts;
  const double losses = BlockSum(mine ? parts[threadIdx.x] : 0.0),
               tokens = BlockSum(mine ? parts[count_of_parts + threadIdx.x] : 0.0);
  if (threadIdx.x != 0) return;
  *loss = static_cast<float>((add ? static_cast<double>(*loss) : 0.0) + losses);
  *count = static_cast<float>((add ? static_cast<double>(*count) : 0.0) + tokens);
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2)
    CrossEntropyGrad(const T* x, const float* largest, const float* sum, const int32_t* targets, int64_t rows,
                     int64_t width, int64_t first, T* dx) {
  ForRows(rows, [&](int64_t r) {
    const T* row = x + r * width;
    T* to = dx + r * width;
    const int64_t target = targets[r];
    const float most = largest[r], inverse = 1.0f / sum[r];
    ForRow(row, static_cast<const T*>(to), width, [&](int64_t c, auto lanes) {
      const auto v = Load(row + c, lanes);
      Store(to + c, Each(lanes, [&](int k) {
              const float p = expf(v[k] - most) * inverse;
              return target < 0 ? 0.0f : first + c + k == target ? p - 1.0f : p;
            }));
    });
  });
}

template <typename T>
dim3 ThreadsOf(const Logits& x) {
  return RowThreads(x.width, kPack<T>, kRowThreads);
}

}  // namespace

void LaunchLogitsMax(const Logits& x, float* largest, cudaStream_t stream) {
  if (x.rows == 0) return;
  ForElementType(x.dtype, [&]<typename T>(T) {
    Launch(LogitsMax<T>, RowBlocks(x.rows), ThreadsOf<T>(x), 0, stream, static_cast<const T*>(x.data), x.rows, x.width,
           largest);
  });
}

void LaunchLogitsSum(const Logits& x, const float* largest, const int32_t* targets, float* sum, float* target,
                     cudaStream_t stream) {
  if (x.rows == 0) return;
  ForElementType(x.dtype, [&]<typename T>(T) {
    Launch(LogitsSum<T>, RowBlocks(x.rows), ThreadsOf<T>(x), 0, stream, static_cast<const T*>(x.data), largest, targets,
           x.rows, x.width, x.first, sum, target);
  });
}

void LaunchTokenLoss(const float* largest, const float* sum, const float* target, const int32_t* targets, int64_t rows,
                     float* loss, float* count, bool add, double* workspace, cudaStream_t stream) {
  const int64_t parts = ::espalier::TokenLossParts(rows);
  Launch(TokenLossParts, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, stream, largest, sum, target, targets,
         rows, workspace);
  Launch(TokenLoss, dim3(1), dim3(128), 0, stream, workspace, parts, loss, count, add);
}

void LaunchCrossEntropyGrad(const Logits& x, const float* largest, const float* sum, const int32_t* targets, void* dx,
                            cudaStream_t stream) {
  if (x.rows * x.width == 0) return;
  ForElementType(x.dtype, [&]<typename T>(T) {
    Launch(CrossEntropyGrad<T>, RowBlocks(x.rows), ThreadsOf<T>(x), 0, stream, static_cast<const T*>(x.data), largest,
           sum, targets, x.rows, x.width, x.first, static_cast<T*>(dx));
  });
}

}  // namespace espalier::cuda
