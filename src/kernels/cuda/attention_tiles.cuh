// Tiles of 64 by 64 scores, shared by attention and its adjoint. A block of 256 threads stands as 16 by 16: thread (y,
// x) has rows y + 16 i and columns x + 16 j of a tile, so the 16 threads of a row are half a warp. head_dim is staged
// 32 elements at a time: shared memory does not grow with it.
#pragma once

#include "attention.hpp"
#include "espalier/kernels/cuda/launch.cuh"

namespace espalier::cuda {

constexpr int kTile = 64, kThreads = 256, kSide = 16, kOwn = kTile / kSide;
constexpr int kDepth = 32, kOwnColumns = kDepth / kSide;
constexpr int kPitch = kDepth + 1, kWeightPitch = kTile + 1;  // odd, so that a column's elements lie in different banks
constexpr size_t kSharedFloats = 2 * kTile * kPitch + kTile * kWeightPitch + 2 * kTile;
constexpr size_t kSharedBytes = kSharedFloats * sizeof(float);

__device__ inline float AsFloat(float x) { return x; }
__device__ inline float AsFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void Put(void* to, bool bf16, int64_t i, float x) {
  if (bf16)
    static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(x);
  else
    static_cast<float*>(to)[i] = x;
}

/// A block's shared memory.
struct Shared {
  float *a, *b;       ///< staged rows
  float* weights;     ///< a tile of probabilities, or of their adjoints
  float *lse, *mean;  ///< of 64 queries

  __device__ explicit Shared(float* memory)
      : a(memory),
        b(a + kTile * kPitch),
        weights(b + kTile * kPitch),
        lse(weights + kTile * kWeightPitch),
        mean(lse + kTile) {}
};

/// Place of the calling thread in its block.
struct Place {
  int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;

  __device__ int Row(int i) const { return y + kSide * i; }
  __device__ int Column(int j) const { return x + kSide * j; }
};

/// 64 queries of one head, from `query` on.
struct QueryTile {
  int64_t batch, head, kv_head, query;
};

/// Those of this block: of the last queries first, which see most keys.
__device__ inline QueryTile QueryTileOfBlock(const AttentionExtents& a) {
  const int64_t block = blockIdx.x, heads = a.batch * a.heads, head = block % a.heads;
  return {block % heads / a.heads, head, head * a.kv_heads / a.heads,
          ((a.queries + kTile - 1) / kTile - 1 - block / heads) * kTile};
}

/// Up to 64 rows of one head in a [b,rows,heads e] tensor; what lies beyond `count` counts as 0.
template <typename T>
struct TileRows {
  const T* first;
  int64_t stride, count, head_dim;

  __device__ float At(int64_t row, int64_t column) const {
    return row < count && column < head_dim ? AsFloat(first[row * stride + column]) : 0.0f;
  }
};

__device__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

/// Rows [begin, begin + 64) of `head` of `heads`, out of `rows` a sequence.
template <typename T>
__device__ TileRows<T> RowsOf(const void* x, const AttentionExtents& a, int64_t batch, int64_t rows, int64_t heads,
                              int64_t head, int64_t begin) {
  const T* first = static_cast<const T*>(x) + ((batch * rows + begin) * heads + head) * a.head_dim;
  return {first, heads * a.head_dim, Least(rows - begin, kTile), a.head_dim};
}

/// Lowest position of rows [begin, end). Positions rise but where a chunk of the zigzag order begins.
__device__ inline int64_t LowestPosition(const Piece& piece, int64_t begin, int64_t end) {
  int64_t lowest = piece.PositionOf(begin);
  if (piece.cp == 1) return lowest;
  const int64_t chunk = piece.length / (2 * piece.cp);
  for (int64_t row = ((piece.start + begin) / chunk + 1) * chunk - piece.start; row < end; row += chunk)
    lowest = Least(lowest, piece.PositionOf(row));
  return lowest;
}
__device__ inline int64_t HighestPosition(const Piece& piece, int64_t begin, int64_t end) {
  int64_t highest = piece.PositionOf(end - 1);
  if (piece.cp == 1) return highest;
  const int64_t chunk = piece.length / (2 * piece.cp);
  for (int64_t row = ((piece.start + begin) / chunk + 1) * chunk - piece.start; row < end; row += chunk)
    highest = -Least(-highest, -piece.PositionOf(row - 1));
  return highest;
}

/// No query of the tile at row `query` sees a key of the tile at row `key`.
__device__ inline bool IsHidden(const AttentionExtents& a, int64_t query, int64_t key) {
  if (!a.causal) return false;
  return LowestPosition(a.key_piece, key, Least(key + kTile, a.keys)) >
         HighestPosition(a.query_piece, query, Least(query + kTile, a.queries));
}

/// A query sees the keys at its position and before. One that is not there sees nothing, a key that is not there is
/// seen by none; without a mask all queries come last.
__device__ inline int64_t QueryPosition(const AttentionExtents& a, int64_t row) {
  if (row >= a.queries) return -1;
  return a.causal ? a.query_piece.PositionOf(row) : INT64_MAX - 1;
}
__device__ inline int64_t KeyPosition(const AttentionExtents& a, int64_t row) {
  if (row >= a.keys) return INT64_MAX;
  return a.causal ? a.key_piece.PositionOf(row) : 0;
}

/// Positions of the thread's 4 rows, or 4 columns, of a tile.
struct OwnPositions {
  int64_t at[kOwn];

  __device__ OwnPositions(int64_t (*position)(const AttentionExtents&, int64_t), const AttentionExtents& a,
                          int64_t first) {
    for (int i = 0; i < kOwn; ++i) at[i] = position(a, first + kSide * i);
  }
};

/// Columns [column, column + 32) of 64 rows.
template <typename T>
__device__ void Stage(const TileRows<T>& rows, int64_t column, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads)
    to[i / kDepth * kPitch + i % kDepth] = rows.At(i / kDepth, column + i % kDepth);
}

/// product[i][j] = the thread's row i of `a` times its column j as a row of `b`. Begins with a barrier.
template <typename T>
__device__ void RowProducts(const TileRows<T>& a, const TileRows<T>& b, const Shared& s, float (&product)[kOwn][kOwn]) {
  const Place at;
  for (auto& row : product)
    for (float& x : row) x = 0;
  for (int64_t column = 0; column < a.head_dim; column += kDepth) {
    __syncthreads();
    Stage(a, column, s.a);
    Stage(b, column, s.b);
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      float left[kOwn], right[kOwn];
      for (int i = 0; i < kOwn; ++i) left[i] = s.a[at.Row(i) * kPitch + d];
      for (int j = 0; j < kOwn; ++j) right[j] = s.b[at.Column(j) * kPitch + d];
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) product[i][j] += left[i] * right[j];
    }
  }
}

/// What a thread sums of its 4 rows of a result: columns x and x + 16 of every 32.
template <int kChunks>
struct Sums {
  float at[kChunks][kOwn][kOwnColumns] = {};

  /// Adds the tile of weights in shared memory times 64 rows. Begins with a barrier if head_dim > 0.
  template <typename T>
  __device__ void AddWeighted(const TileRows<T>& rows, const Shared& s) {
    const Place place;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * kDepth >= rows.head_dim) break;
      __syncthreads();
      Stage(rows, chunk * kDepth, s.b);
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < kTile; ++k) {
        float weight[kOwn], x[kOwnColumns];
        for (int i = 0; i < kOwn; ++i) weight[i] = s.weights[place.Row(i) * kWeightPitch + k];
        for (int j = 0; j < kOwnColumns; ++j) x[j] = s.b[k * kPitch + place.Column(j)];
        for (int i = 0; i < kOwn; ++i)
          for (int j = 0; j < kOwnColumns; ++j) at[chunk][i][j] += weight[i] * x[j];
      }
    }
  }

  __device__ void ScaleRow(int i, float factor) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      for (int j = 0; j < kOwnColumns; ++j) at[chunk][i][j] *= factor;
  }

  /// Stores the rows that are there where `rows` would be read.
  __device__ void Store(void* to, bool bf16, int64_t first, int64_t stride, int64_t count, int64_t head_dim) const {
    const Place place;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwnColumns; ++j) {
          const int64_t column = chunk * kDepth + place.Column(j);
          if (place.Row(i) < count && column < head_dim)
            Put(to, bf16, first + place.Row(i) * stride + column, at[chunk][i][j]);
        }
  }
};

/// Sum and maximum over the 16 threads of a row.
__device__ inline float RowSum(float x) {
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}
__device__ inline float RowMaximum(float x) {
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

/// Calls f(T{}, integral constant) for the element type of the inputs and as many chunks of 32 as a head fills.
template <typename F>
void ForKind(bool bf16, int64_t head_dim, F f) {
  const auto with = [&](auto element) {
    if (head_dim <= 64) return f(element, Sums<2>{});
    if (head_dim <= 128) return f(element, Sums<4>{});
    f(element, Sums<8>{});
  };
  if (bf16) return with(__nv_bfloat16{});
  with(float{});
}

inline int64_t TilesOf(int64_t rows) { return (rows + kTile - 1) / kTile; }

}  // namespace espalier::cuda
