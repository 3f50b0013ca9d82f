// Rows of experts from tokens, and back. The rows are a stable counting sort of the slots (a token's i-th expert) by
// expert, in four launches: parts of the slots are counted side by side, each slot with its rank in the part; the
// counts become the first rows of each part and expert; slots learn their rows; tokens are copied. Nothing depends on
// the order in which blocks run.
#include "espalier/device_memory/expert_rows.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

constexpr int kScanThreads = 512;  ///< of 1024, registers would be spilled

/// Marks rows as without an expert, from `first` on in steps of `step`.
__device__ void MarkRows(const DispatchArgs& a, int64_t first, int64_t step) {
  for (int64_t r = first; r < a.count; r += step) {
    a.expert_of_row[r] = kNoExpert;
    a.row_weights[r] = 0;
  }
}
__global__ void MarkAllRows(DispatchArgs a) {
  MarkRows(a, blockIdx.x * int64_t{kThreads} + threadIdx.x, gridDim.x * int64_t{kThreads});
}

/// Sets counts i32[parts,experts], the slots of each part and expert, and in `places` each slot's rank among these
/// slots, -1 for experts of other ranks. kThreads slots at a time: a thread compares its expert with all of them. All
/// rows are marked as without an expert.
__global__ void CountSlots(DispatchArgs a, int32_t* counts) {
  __shared__ int32_t together[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t slots = a.tokens * a.per_token, part = blockIdx.x, parts = gridDim.x, end = slots * (part + 1) / parts;
  int32_t* counted = counts + part * a.experts;
  MarkRows(a, part * kThreads + thread, parts * kThreads);
  for (int64_t e = thread; e < a.experts; e += kThreads) counted[e] = 0;
  for (int64_t first = slots * part / parts; first < end; first += kThreads) {
    const int64_t slot = first + thread;
    const int64_t number = slot < end ? a.chosen[slot] - a.first_expert : -1;
    const bool here = number >= 0 && number < a.experts;
    const int32_t expert = here ? static_cast<int32_t>(number) : -1;
    __syncthreads();  // the counts of earlier slots are complete
    together[thread] = expert;
    const int32_t earlier = here ? counted[expert] : 0;
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int i = 0; i < kThreads; ++i) {
      const int32_t same = together[i] == expert;
      before += i < thread ? same : 0;
      all += same;
    }
    if (slot >= end) continue;
    a.places[slot] = here ? earlier + before : -1;
    if (here && before + 1 == all) counted[expert] = earlier + all;
  }
}

/// Counts become the rows at which the slots of each part and expert begin. One block.
__global__ void __launch_bounds__(kScanThreads) FindFirstRows(int32_t* counts, int64_t parts, int64_t experts) {
  constexpr int kAtOnce = 16;  // loads in flight
  int32_t row = 0;
  for (int64_t first = 0; first < experts; first += kScanThreads) {
    const int64_t e = first + threadIdx.x;
    int32_t total = 0;
#pragma unroll kAtOnce
    for (int64_t part = 0; part < (e < experts ? parts : 0); ++part) total += counts[part * experts + e];
    const RunningSum sum = BlockRunningSum(total);
    int32_t at = row + sum.before;
    for (int64_t part = 0; part < (e < experts ? parts : 0); part += kAtOnce) {
      int32_t here[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) here[i] = part + i < parts ? counts[(part + i) * experts + e] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (part + i < parts) counts[(part + i) * experts + e] = at;
        at += here[i];
      }
    }
    row += sum.all;
  }
}

/// Ranks become rows of this pass, which learn their experts and weights.
__global__ void PlaceSlots(DispatchArgs a, const int32_t* first_rows, int64_t parts) {
  const int64_t slots = a.tokens * a.per_token;
  ForElements<1>(slots, [&](int64_t slot, auto) {
    const int64_t part = ((slot + 1) * parts - 1) / slots;  // as CountSlots divides
    if (a.places[slot] < 0) return;
    const int64_t expert = a.chosen[slot] - a.first_expert,
                  row = first_rows[part * a.experts + expert] + a.places[slot] - a.first_row;
    const bool fits = row >= 0 && row < a.count;
    a.places[slot] = fits ? static_cast<int32_t>(row) : -1;
    if (!fits) return;
    a.expert_of_row[row] = static_cast<int32_t>(expert);
    a.row_weights[row] = a.weights[slot];
  });
}

/// Each token of x is copied to its rows.
template <typename T, int N>
__global__ void CopyToRows(const T* x, const int32_t* places, T* rows, int64_t tokens, int64_t per_token,
                           int64_t width) {
  ForRows(tokens, [&](int64_t t) {
    ForColumns<N>(width, [&](int64_t c, auto lanes) {
      const auto v = Load(x + t * width + c, lanes);
      for (int64_t i = 0; i < per_token; ++i)
        if (const int32_t row = places[t * per_token + i]; row >= 0) Store(rows + row * width + c, v);
    });
  });
}

void LaunchCopyToRows(const Array& x, const int32_t* places, const Array& rows, int64_t tokens, int64_t per_token,
                      int64_t width, cudaStream_t stream) {
  if (tokens * per_token * width == 0) return;
  ForPacks(x.dtype, width, AreAligned(x.data, rows.data), [&]<typename T>(T, auto lanes) {
    Launch(CopyToRows<T, lanes.value>, RowBlocks(tokens), RowThreads(width, lanes), 0, stream, x.As<T>(), places,
           rows.As<T>(), tokens, per_token, width);
  });
}

/// The rows of each token are added up, in the order of its experts.
template <typename T, int N>
__global__ void AddRowsOfTokens(CombineArgs a) {
  const T* rows = a.rows.As<T>();
  T* y = a.y.As<T>();
  ForRows(a.tokens, [&](int64_t t) {
    const int32_t* places = a.places + t * a.per_token;
    ForColumns<N>(a.width, [&](int64_t c, auto lanes) {
      Floats<lanes.value> sum{};
      if (a.accumulate) sum = Load(y + t * a.width + c, lanes);
#pragma unroll 4  // loads in flight
      for (int64_t i = 0; i < a.per_token; ++i) {
        if (places[i] < 0) continue;
        const auto v = Load(rows + places[i] * a.width + c, lanes);
        sum = Each(lanes, [&](int k) { return sum[k] + v[k]; });
      }
      Store(y + t * a.width + c, sum);
    });
  });
}

/// y[slot] = x[places[slot]]; a slot without a row has 0, or what it had.
__global__ void TakeFromRows(const float* x, const int32_t* places, float* y, int64_t slots, bool accumulate) {
  ForElements<1>(slots, [&](int64_t slot, auto) {
    if (places[slot] >= 0)
      y[slot] = x[places[slot]];
    else if (!accumulate)
      y[slot] = 0;
  });
}

}  // namespace

void Dispatch(const DispatchArgs& a, const LaunchContext& context) {
  const int64_t slots = a.tokens * a.per_token, parts = DispatchParts(slots);
  if (slots == 0) {
    if (a.count > 0) Launch(MarkAllRows, ElementBlocks(a.count, 1), dim3(kThreads), 0, context.stream, a);
    return;
  }
  Require(std::max(slots, a.count) <= INT32_MAX, "dispatch: more than 2^31 - 1 rows");
  auto* counts = context.Workspace<int32_t>(DispatchBytes(slots, a.experts));
  Launch(CountSlots, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, context.stream, a, counts);
  Launch(FindFirstRows, dim3(1), dim3(kScanThreads), 0, context.stream, counts, parts, a.experts);
  Launch(PlaceSlots, ElementBlocks(slots, 1), dim3(kThreads), 0, context.stream, a, counts, parts);
  LaunchCopyToRows(a.x, a.places, a.rows, a.tokens, a.per_token, a.width, context.stream);
}

void DispatchGrad(const DispatchGradArgs& a, const LaunchContext& context) {
  Combine({a.drows, a.places, a.dx, a.tokens, a.per_token, a.width, a.accumulate}, context);
  const int64_t slots = a.tokens * a.per_token;
  if (slots == 0) return;
  Launch(TakeFromRows, ElementBlocks(slots, 1), dim3(kThreads), 0, context.stream, a.drow_weights, a.places, a.dweights,
         slots, a.accumulate);
}

void Combine(const CombineArgs& a, const LaunchContext& context) {
  if (a.tokens * a.width == 0) return;
  ForPacks(a.y.dtype, a.width, AreAligned(a.rows.data, a.y.data), [&]<typename T>(T, auto lanes) {
    Launch(AddRowsOfTokens<T, lanes.value>, RowBlocks(a.tokens), RowThreads(a.width, lanes), 0, context.stream, a);
  });
}

void CombineGrad(const CombineGradArgs& a, const LaunchContext& context) {
  LaunchCopyToRows(a.dy, a.places, a.drows, a.tokens, a.per_token, a.width, context.stream);
}

}  // namespace espalier::cuda
