// Matmuls of rows by the weights of their experts. Each product is one launch for all experts, whatever the routing,
// and a tiny one before it that finds the rows of each tile. A tile of results belongs to one expert. There are as many
// blocks as any routing needs; those without a tile end at once. The gradient of weights has a block for each tile of
// each expert's weight, which adds up the expert's rows in order.
//
// Operands pass through shared memory in steps of the contracted dim, several of them on their way at a time. bf16 and
// fp8 are multiplied on tensor cores by mma, fp32 by ordinary arithmetic. An element is the sum over the steps in
// order, wherever it is in a tile, so its bits do not depend on other rows.
//
// In fp8 both operands are contiguous along the contracted dim, two elements where bf16 has one, so a step is twice as
// deep. The scales multiply the whole sum. On Hopper mma of fp8 is no instruction of tensor cores: it becomes two
// products of fp16, to which operands are widened in registers (seen in the machine code of sm_90a; sm_89 has one). So
// fp8 reaches the rate of bf16 at best (not measured); wgmma would double it.
//
// On an H200, 32,768 rows by experts of 2048 x 2048, bf16, TFLOP/s; a dense matmul runs at 661:
//
//   rows per expert   forward   gradient of rows   of weights   of weights, accumulated
//       128             170           173             132               54
//       512             219           223             204              144
//      2048             229           237             237              212
//
// So the share is 0.26 at 128 rows and 0.35 at 2048. With tiles of 128 rows, r / 128 + 1/2 of them are computed on
// average for r / 128 that are needed: a share of 0.67, 0.89 and 0.97. The rest is mma, which has about 0.6 of the rate
// of Hopper's wgmma, and a loop that waits for shared memory. At 128 rows, gradients of weights are limited by memory.
#include <algorithm>

#include "espalier/device_memory/expert_rows.hpp"
#include "kernels/cuda/runtime/expert_rows.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"
#include "kernels/cuda/runtime/tensor_cores.cuh"

namespace espalier::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kFindThreads = 1024;

/// Two neighbours in fp8 along the contracted dim, which count as one element here. Elements of a have the format kA,
/// elements of b e4m3.
template <Dtype kA>
struct Fp8Pair {
  static constexpr Dtype kFormat = kA;
  uint16_t codes;
};

/// Rows and columns of a tile, elements of a step along the contracted dim, and steps in shared memory.
template <typename T>
constexpr int kSide = GroupedTileSide(std::is_same_v<T, float> ? Dtype::kF32 : Dtype::kBf16);
template <typename T>
constexpr int kDepth = std::is_same_v<T, float> ? 16 : 32;
template <typename T>
constexpr int kStages = std::is_same_v<T, float> ? 3 : 4;

/// Spans of at most `most` rows of each expert, in order, then empty ones up to `count`. `whole`: one of each expert,
/// with all its rows. One block; a thread has the first row of an expert, the next one the row at which it ends.
__global__ void __launch_bounds__(kFindThreads)
    FindSpans(GroupedRows group, int32_t most, bool whole, ExpertSpan* spans, int64_t count) {
  __shared__ int32_t first_rows[kFindThreads];
  constexpr int kExperts = kFindThreads - 1;
  const int thread = static_cast<int>(threadIdx.x);
  int32_t found = 0;
  for (int64_t first = 0; first < group.experts; first += kExperts) {
    const int64_t e = first + thread;
    const bool exists = thread < kExperts && e < group.experts;
    first_rows[thread] = FirstRowOf(group, e < group.experts ? e : group.experts);
    __syncthreads();
    const int32_t begin = first_rows[thread], end = exists ? first_rows[thread + 1] : begin;
    const auto tiles = static_cast<int32_t>((int64_t{end} - begin + most - 1) / most),
               mine = whole ? int32_t{exists} : tiles;
    const RunningSum sum = BlockRunningSum(mine);
    for (int32_t i = 0; i < mine; ++i) {
      const int32_t row = begin + i * most, rest = end - row;
      spans[found + sum.before + i] = {static_cast<int32_t>(e), row, rest < most ? rest : most};
    }
    found += sum.all;
  }
  for (int64_t i = found + thread; i < count; i += kFindThreads) spans[i] = {0, 0, 0};
}

/// An operand [outer,depth] of a tile, of which `depth` is contracted: along a row of memory, or across rows.
template <typename T>
struct Operand {
  const T* data;
  int64_t pitch, outer, depth;
};

/// A step of an operand in shared memory, stored as in memory. Rows are longer by 16 bytes, so that eight of them at
/// one column are in different banks.
template <typename T, bool kAlong>
struct Step {
  static constexpr int kRow = kAlong ? kDepth<T> : kSide<T>, kRows = kAlong ? kSide<T> : kDepth<T>,
                       kPitch = kRow + kPack<T>, kElements = kRows * kPitch;

  __device__ static int At(int outer, int k) { return kAlong ? outer * kPitch + k : k * kPitch + outer; }
};

/// Starts to copy the step from element `depth` on; zeros where the operand ends. Packs of kLanes elements are inside
/// or outside as a whole.
template <bool kAlong, int kLanes, typename T>
__device__ void CopyStep(const Operand<T>& x, int64_t depth, T* to) {
  using Here = Step<T, kAlong>;
  constexpr int kPacks = Here::kRow / kLanes;
  for (int p = static_cast<int>(threadIdx.x); p < Here::kRows * kPacks; p += kThreads) {
    const int row = p / kPacks, column = p % kPacks * kLanes, outer = kAlong ? row : column, k = kAlong ? column : row;
    const bool inside = outer < x.outer && depth + k < x.depth;
    const T* from = x.data + (kAlong ? outer * x.pitch + depth + k : (depth + k) * x.pitch + outer);
    if constexpr (kLanes > 1)
      CopyAsync(to + Here::At(outer, k), inside ? from : x.data, inside);
    else
      to[Here::At(outer, k)] = inside ? *from : Narrow<T>(0.0f);
  }
}

/// A thread's part of the sums of a tile. On tensor cores warps are two by four, each with 64 by 32 sums, in blocks of
/// 16 by 8 (MultiplyAdd).
template <typename T>
class Sums {
 public:
  /// += the products of a step.
  template <bool kAlongA, bool kAlongB>
  __device__ void Add(const T* a, const T* b) {
    using A = Step<T, kAlongA>;
    using B = Step<T, kAlongB>;
    // The lane's row of the matrix that it addresses: 8 by 8 elements from `outer` and `k` on.
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kDepth<T>; k += 16) {
      uint32_t left[kRowBlocks][4], right[kColumnBlocks / 2][4];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        const int outer = FirstRow() + 16 * m + low, depth = k + high;
        Load<!kAlongA>(left[m], a + (kAlongA ? A::At(outer + row, depth) : A::At(outer, depth + row)));
      }
#pragma unroll
      for (int n = 0; n < kColumnBlocks / 2; ++n) {
        const int outer = FirstColumn() + 16 * n + high, depth = k + low;
        Load<!kAlongB>(right[n], b + (kAlongB ? B::At(outer + row, depth) : B::At(outer, depth + row)));
      }
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kColumnBlocks; ++n)
          Multiply(sums_[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
    }
  }

  /// Calls f(row, column, sums) for sums that follow one another in a row.
  template <typename F>
  __device__ void ForEach(F f) const {
    const int lane = static_cast<int>(threadIdx.x % 32), row = FirstRow() + lane / 4,
              column = FirstColumn() + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kColumnBlocks; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          f(row + 16 * m + 8 * half, column + 8 * n, Floats<2>{sums_[m][n][2 * half], sums_[m][n][2 * half + 1]});
  }

 private:
  static constexpr int kRowBlocks = 4, kColumnBlocks = 4;
  static_assert(kSide<T> == 2 * 16 * kRowBlocks && kSide<T> == 4 * 8 * kColumnBlocks && kThreads == 8 * 32);

  __device__ static int FirstRow() { return static_cast<int>(threadIdx.x / 128) * 16 * kRowBlocks; }
  __device__ static int FirstColumn() { return static_cast<int>(threadIdx.x / 32 % 4) * 8 * kColumnBlocks; }

  template <bool kTransposed>
  __device__ static void Load(uint32_t (&x)[4], const T* row) {
    static_assert(std::is_same_v<T, Bf16> || !kTransposed, "fp8 is contiguous along the contracted dim");
    LoadMatrices<kTransposed>(x, reinterpret_cast<const Bf16*>(row));
  }
  __device__ static void Multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, Bf16>) {
      MultiplyAdd(sums, a, b0, b1);
    } else {
      MultiplyAddFp8<T::kFormat>(sums, a, b0, b1);
    }
  }

  float sums_[kRowBlocks][kColumnBlocks][4] = {};
};

/// Threads are 16 by 16; thread (y, x) has rows y + 16 i and columns x + 16 j.
template <>
class Sums<float> {
 public:
  template <bool kAlongA, bool kAlongB>
  __device__ void Add(const float* a, const float* b) {
#pragma unroll
    for (int k = 0; k < kDepth<float>; ++k) {
      float left[kOwn], right[kOwn];
      for (int i = 0; i < kOwn; ++i) left[i] = a[Step<float, kAlongA>::At(Row(i), k)];
      for (int j = 0; j < kOwn; ++j) right[j] = b[Step<float, kAlongB>::At(Column(j), k)];
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) sums_[i][j] += left[i] * right[j];
    }
  }

  template <typename F>
  __device__ void ForEach(F f) const {
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) f(Row(i), Column(j), Floats<1>{sums_[i][j]});
  }

 private:
  static constexpr int kThreadsOfRow = 16, kOwn = kSide<float> / kThreadsOfRow;
  static_assert(kThreads == kThreadsOfRow * kThreadsOfRow);

  __device__ static int Row(int i) { return static_cast<int>(threadIdx.x) / kThreadsOfRow + kThreadsOfRow * i; }
  __device__ static int Column(int j) { return static_cast<int>(threadIdx.x) % kThreadsOfRow + kThreadsOfRow * j; }

  float sums_[kOwn][kOwn] = {};
};

/// Where a tile of results goes. `add`: to the old values.
template <typename To>
struct Results {
  To* data;
  int64_t pitch, rows, columns;
  bool add = false;

  template <int N>
  __device__ void Put(To* to, Floats<N> x) const {
    if (add) {
      const auto old = Load(to, Lanes<N>{});
      x = Each(Lanes<N>{}, [&](int k) { return old[k] + x[k]; });
    }
    Store(to, x);
  }
};

/// Bytes of shared memory of a block.
template <typename T, bool kAlongA, bool kAlongB>
constexpr size_t kStepBytes = static_cast<size_t>(Step<T, kAlongA>::kElements + Step<T, kAlongB>::kElements) *
                              sizeof(T);

/// The factor of each sum: none.
struct Unscaled {
  __device__ static float Of(int, int) { return 1.0f; }
};
/// Scales of the tile's rows, and of its columns or one for all of these (column_pitch 0).
struct Scaled {
  const float *rows, *columns;
  int column_pitch;
  __device__ float Of(int row, int column) const { return rows[row] * columns[column * column_pitch]; }
};

/// A tile of results, computed by a block. kPacked: all rows of memory begin at multiples of 16 bytes.
template <bool kAlongA, bool kAlongB, bool kPacked, typename T, typename To, typename Factors = Unscaled>
__device__ void MultiplyTile(const Operand<T>& a, const Operand<T>& b, const Results<To>& results, T* shared,
                             Factors factors = {}) {
  constexpr int kLanes = kPacked ? kPack<T> : 1, kElements = kStepBytes<T, kAlongA, kAlongB> / sizeof(T),
                kAhead = kStages<T> - 1;
  const auto steps = static_cast<int>((a.depth + kDepth<T> - 1) / kDepth<T>);
  const auto stage = [&](int step) { return shared + step % kStages<T> * kElements; };
  const auto copy = [&](int step) {
    if (step < steps) {
      const int64_t depth = int64_t{step} * kDepth<T>;
      CopyStep<kAlongA, kLanes>(a, depth, stage(step));
      CopyStep<kAlongB, kLanes>(b, depth, stage(step) + Step<T, kAlongA>::kElements);
    }
    EndCopies();
  };
  for (int step = 0; step < kAhead; ++step) copy(step);
  Sums<T> sums;
  for (int step = 0; step < steps; ++step) {
    AwaitCopies<kAhead - 1>();
    __syncthreads();  // the step is here, and the stage of the one before it has been read
    copy(step + kAhead);
    sums.template Add<kAlongA, kAlongB>(stage(step), stage(step) + Step<T, kAlongA>::kElements);
  }
  sums.ForEach([&]<int N>(int row, int column, const Floats<N>& x) {
    if (row >= results.rows) return;
    To* to = results.data + row * results.pitch + column;
    if constexpr (kPacked) {
      if (column < results.columns)
        results.Put(to, Each(Lanes<N>{}, [&](int k) { return x[k] * factors.Of(row, column + k); }));
    } else {
      for (int k = 0; k < N; ++k)
        if (column + k < results.columns) results.Put(to + k, Floats<1>{x[k]});
    }
  });
}

/// A tile of y = x W^T or of dx = dy W. Blocks that follow one another have the same rows, and other columns.
template <typename T, bool kForward, bool kPacked>
__global__ void __launch_bounds__(kThreads, 2)
    RowsByExpert(GroupedMatmulArgs a, const ExpertSpan* spans, int64_t blocks_of_columns) {
  SHARED_ARRAY(T, shared);
  const ExpertSpan span = spans[blockIdx.x / blocks_of_columns];
  if (span.rows == 0) return;
  const int64_t n = kForward ? a.out : a.in, k = kForward ? a.in : a.out,
                column = blockIdx.x % blocks_of_columns * kSide<T>;
  const T* weight = a.b.As<T>() + span.expert * n * k;
  MultiplyTile<true, kForward, kPacked>(
      Operand<T>{a.a.As<T>() + span.first * k, k, span.rows, k},
      Operand<T>{weight + (kForward ? column * k : column), kForward ? k : n, n - column, k},
      Results<T>{a.c.As<T>() + span.first * n + column, n, span.rows, n - column}, shared);
}

/// A tile of y = x W^T with operands in fp8, of which a is in the format kA.
template <Dtype kA>
__global__ void __launch_bounds__(kThreads, 2)
    RowsByExpertInFp8(GroupedMatmulArgs a, const ExpertSpan* spans, int64_t blocks_of_columns) {
  using T = Fp8Pair<kA>;
  SHARED_ARRAY(T, shared);
  const ExpertSpan span = spans[blockIdx.x / blocks_of_columns];
  if (span.rows == 0) return;
  const int64_t n = a.out, k = a.in / 2, column = blockIdx.x % blocks_of_columns * kSide<T>,
                weight = span.expert * n + column;
  MultiplyTile<true, true, true>(
      Operand<T>{a.a.As<T>() + span.first * k, k, span.rows, k}, Operand<T>{a.b.As<T>() + weight * k, k, n - column, k},
      Results<Bf16>{a.c.As<Bf16>() + span.first * n + column, n, span.rows, n - column}, shared,
      Scaled{a.a_scales + span.first, a.b_scales + (a.b_has_row_scales ? weight : span.expert), a.b_has_row_scales});
}

/// A tile of an expert's dW = dy^T x.
template <typename T, bool kPacked>
__global__ void __launch_bounds__(kThreads, 2) WeightsOfExperts(GroupedMatmulArgs a, const ExpertSpan* spans) {
  SHARED_ARRAY(T, shared);
  const int64_t blocks_of_rows = (a.out + kSide<T> - 1) / kSide<T>,
                blocks_of_columns = (a.in + kSide<T> - 1) / kSide<T>,
                block = blockIdx.x % (blocks_of_rows * blocks_of_columns), row = block / blocks_of_columns * kSide<T>,
                column = block % blocks_of_columns * kSide<T>;
  const ExpertSpan span = spans[blockIdx.x / (blocks_of_rows * blocks_of_columns)];
  if (span.rows == 0 && a.accumulate) return;
  MultiplyTile<false, false, kPacked>(
      Operand<T>{a.a.As<T>() + span.first * a.out + row, a.out, a.out - row, span.rows},
      Operand<T>{a.b.As<T>() + span.first * a.in + column, a.in, a.in - column, span.rows},
      Results<float>{a.c.As<float>() + (span.expert * a.out + row) * a.in + column, a.in, a.out - row, a.in - column,
                     a.accumulate},
      shared);
}

/// Calls f(T{}, std::bool_constant<packed>) for the element type.
template <typename F>
void ForTiles(const GroupedMatmulArgs& a, F f) {
  ForElementType(a.a.dtype, [&]<typename T>(T element) {
    const bool packed = a.out % kPack<T> == 0 && a.in % kPack<T> == 0 && AreAligned(a.a.data, a.b.data, a.c.data);
    packed ? f(element, std::true_type{}) : f(element, std::false_type{});
  });
}

int64_t Tiles(int64_t n, int64_t side) { return (n + side - 1) / side; }

template <typename T, bool kForward, bool kPacked>
void LaunchRowsByExpert(const GroupedMatmulArgs& a, const ExpertSpan* spans, int64_t count, cudaStream_t stream) {
  const int64_t blocks_of_columns = Tiles(kForward ? a.out : a.in, kSide<T>);
  Launch(RowsByExpert<T, kForward, kPacked>, dim3(static_cast<unsigned>(count * blocks_of_columns)), dim3(kThreads),
         kStages<T> * kStepBytes<T, true, kForward>, stream, a, spans, blocks_of_columns);
}

template <Dtype kA>
void LaunchInFp8(const GroupedMatmulArgs& a, const ExpertSpan* spans, int64_t count, cudaStream_t stream) {
  using T = Fp8Pair<kA>;
  const int64_t blocks_of_columns = Tiles(a.out, kSide<T>);
  Launch(RowsByExpertInFp8<kA>, dim3(static_cast<unsigned>(count * blocks_of_columns)), dim3(kThreads),
         kStages<T> * kStepBytes<T, true, true>, stream, a, spans, blocks_of_columns);
}

void MultiplyRows(const GroupedMatmulArgs& a, const LaunchContext& context) {
  const bool forward = a.product == GroupedProduct::kForward;
  if (a.group.rows * (forward ? a.out : a.in) == 0) return;
  const int64_t count = GroupedTiles(a.group.rows, a.group.experts, a.a.dtype);
  auto* spans = context.Workspace<ExpertSpan>(GroupedMatmulBytes(count));
  Launch(FindSpans, dim3(1), dim3(kFindThreads), 0, context.stream, a.group, GroupedTileSide(a.a.dtype), false, spans,
         count);
  if (a.a_scales != nullptr) {
    Require(a.out % 16 == 0 && a.in % 16 == 0 && AreAligned(a.a.data, a.b.data, a.c.data),
            "grouped_matmul in fp8: rows of whole packs");
    return a.a.dtype == Dtype::kF8E4M3 ? LaunchInFp8<Dtype::kF8E4M3>(a, spans, count, context.stream)
                                       : LaunchInFp8<Dtype::kF8E5M2>(a, spans, count, context.stream);
  }
  ForTiles(a, [&]<typename T, bool kPacked>(T, std::bool_constant<kPacked>) {
    forward ? LaunchRowsByExpert<T, true, kPacked>(a, spans, count, context.stream)
            : LaunchRowsByExpert<T, false, kPacked>(a, spans, count, context.stream);
  });
}

void AddUpWeights(const GroupedMatmulArgs& a, const LaunchContext& context) {
  const int64_t experts = a.group.experts;
  if (experts * a.out * a.in == 0) return;
  auto* spans = context.Workspace<ExpertSpan>(GroupedMatmulBytes(experts));
  Launch(FindSpans, dim3(1), dim3(kFindThreads), 0, context.stream, a.group, INT32_MAX, true, spans, experts);
  ForTiles(a, [&]<typename T, bool kPacked>(T, std::bool_constant<kPacked>) {
    const int64_t blocks = experts * Tiles(a.out, kSide<T>) * Tiles(a.in, kSide<T>);
    Launch(WeightsOfExperts<T, kPacked>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
           kStages<T> * kStepBytes<T, false, false>, context.stream, a, spans);
  });
}

}  // namespace

void GroupedMatmul(const GroupedMatmulArgs& a, const LaunchContext& context) {
  Require(a.group.rows <= INT32_MAX, "grouped_matmul: more than 2^31 - 1 rows");
  a.product == GroupedProduct::kWeightGradient ? AddUpWeights(a, context) : MultiplyRows(a, context);
}

}  // namespace espalier::cuda
