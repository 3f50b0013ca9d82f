// Tiles of 64 by 64 scores, shared by attention and its gradient. A block of 256 threads is arranged as 16 by 16:
// thread (y, x) has rows y + 16 i and columns x + 16 j of a tile, so the 16 threads of a row are half a warp. Heads are
// staged 32 features at a time: shared memory does not grow with them.
#pragma once

#include "espalier/kernels/cuda/launch.cuh"
#include "plain_attention.hpp"

namespace espalier::cuda {

constexpr int kTile = 64, kThreads = 256, kSide = 16, kOwn = kTile / kSide;
constexpr int kDepth = 32, kOwnColumns = kDepth / kSide;
constexpr int kPitch = kDepth + 1, kWeightPitch = kTile + 1;  // odd: a column's elements are in different banks
constexpr size_t kSharedFloats = 2 * kTile * kPitch + kTile * kWeightPitch + 2 * kTile;
constexpr size_t kTileBytes = kSharedFloats * sizeof(float);

__device__ inline float AsFloat(float x) { return x; }
__device__ inline float AsFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void Put(const Array& to, int64_t i, float x) {
  if (to.dtype == Dtype::kBf16)
    to.As<__nv_bfloat16>()[i] = __float2bfloat16(x);
  else
    to.As<float>()[i] = x;
}

/// A block's shared memory.
struct Shared {
  float *a, *b;       ///< staged rows
  float* weights;     ///< a tile of probabilities, or of their gradients
  float *lse, *mean;  ///< for 64 queries

  __device__ explicit Shared(float* memory)
      : a(memory),
        b(a + kTile * kPitch),
        weights(b + kTile * kPitch),
        lse(weights + kTile * kWeightPitch),
        mean(lse + kTile) {}
};

/// The calling thread's position in its block.
struct Place {
  int y = static_cast<int>(threadIdx.x) / kSide, x = static_cast<int>(threadIdx.x) % kSide;

  __device__ int Row(int i) const { return y + kSide * i; }
  __device__ int Column(int j) const { return x + kSide * j; }
};

__device__ inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

/// Up to 64 rows of one head in a [b,rows,heads e] tensor; rows from `count` on read as 0.
template <typename T>
struct TileRows {
  const T* first;
  int64_t stride, count, features;

  __device__ float At(int64_t row, int64_t column) const {
    return row < count && column < features ? AsFloat(first[row * stride + column]) : 0.0f;
  }
};

/// Offset of the tile of rows [row, row + 64) of one head, in elements. Results (o and its gradient) are dense.
__device__ inline int64_t QueryOffset(const AttentionShape& s, int64_t batch, int64_t head, int64_t row) {
  return (batch * s.queries + row) * s.QueryRow() + head * s.head_dim;
}
__device__ inline int64_t ResultOffset(const AttentionShape& s, int64_t batch, int64_t head, int64_t row) {
  return ((batch * s.queries + row) * s.heads + head) * s.ValueDim();
}
__device__ inline int64_t KeyOffset(const AttentionShape& s, int64_t batch, int64_t kv_head, int64_t row) {
  return (batch * s.keys + row) * s.KeyRow() + kv_head * s.head_dim;
}
__device__ inline int64_t ValueOffset(const AttentionShape& s, int64_t batch, int64_t kv_head, int64_t row) {
  return (batch * s.keys + row) * s.ValueRow() + kv_head * s.ValueDim();
}

template <typename T>
__device__ TileRows<T> QueryRows(const Array& x, const AttentionShape& s, int64_t batch, int64_t head, int64_t row) {
  return {x.As<T>() + QueryOffset(s, batch, head, row), s.QueryRow(), Min(s.queries - row, kTile), s.head_dim};
}
template <typename T>
__device__ TileRows<T> ResultRows(const Array& x, const AttentionShape& s, int64_t batch, int64_t head, int64_t row) {
  return {x.As<T>() + ResultOffset(s, batch, head, row), s.ResultRow(), Min(s.queries - row, kTile), s.ValueDim()};
}
template <typename T>
__device__ TileRows<T> KeyRows(const Array& x, const AttentionShape& s, int64_t batch, int64_t kv_head, int64_t row) {
  return {x.As<T>() + KeyOffset(s, batch, kv_head, row), s.KeyRow(), Min(s.keys - row, kTile), s.head_dim};
}
template <typename T>
__device__ TileRows<T> ValueRows(const Array& x, const AttentionShape& s, int64_t batch, int64_t kv_head, int64_t row) {
  return {x.As<T>() + ValueOffset(s, batch, kv_head, row), s.ValueRow(), Min(s.keys - row, kTile), s.ValueDim()};
}

/// The 64 queries of one head that a block computes. The last queries, which see most keys, come first.
struct QueryTile {
  const AttentionShape& shape;
  int64_t batch, head, kv_head, query;

  __device__ explicit QueryTile(const AttentionShape& s) : shape(s) {
    const int64_t block = blockIdx.x, heads = s.batch * s.heads;
    head = block % s.heads;
    batch = block % heads / s.heads;
    kv_head = head * s.kv_heads / s.heads;
    query = ((s.queries + kTile - 1) / kTile - 1 - block / heads) * kTile;
  }
  template <typename T>
  __device__ TileRows<T> Queries(const Array& x) const {
    return QueryRows<T>(x, shape, batch, head, query);
  }
  template <typename T>
  __device__ TileRows<T> Results(const Array& x) const {
    return ResultRows<T>(x, shape, batch, head, query);
  }
  template <typename T>
  __device__ TileRows<T> Keys(const Array& x, int64_t key) const {
    return KeyRows<T>(x, shape, batch, kv_head, key);
  }
  template <typename T>
  __device__ TileRows<T> Values(const Array& x, int64_t key) const {
    return ValueRows<T>(x, shape, batch, kv_head, key);
  }
  __device__ int64_t Offset() const { return QueryOffset(shape, batch, head, query); }
  __device__ int64_t OffsetOfResults() const { return ResultOffset(shape, batch, head, query); }
  /// Offset of a row of the tile, in [b,h,s].
  __device__ int64_t LseOffset(int row) const { return (batch * shape.heads + head) * shape.queries + query + row; }
};

__device__ inline float ScaleOf(const AttentionShape& s) {
  return s.score_factor / sqrtf(static_cast<float>(s.head_dim));
}

/// Minimum over rows [begin, end) of a value that increases with position. Positions increase except where a chunk of
/// the zigzag order begins.
template <typename F>
__device__ int64_t Lowest(const SequenceShard& shard, int64_t begin, int64_t end, F value_of) {
  int64_t lowest = value_of(begin);
  if (shard.cp == 1) return lowest;
  const int64_t chunk = shard.length / (2 * shard.cp);
  for (int64_t row = ((shard.start + begin) / chunk + 1) * chunk - shard.start; row < end; row += chunk)
    lowest = Min(lowest, value_of(row));
  return lowest;
}
__device__ inline int64_t LowestPosition(const SequenceShard& shard, int64_t begin, int64_t end) {
  return Lowest(shard, begin, end, [&](int64_t row) { return shard.PositionOf(row); });
}
__device__ inline int64_t HighestPosition(const SequenceShard& shard, int64_t begin, int64_t end) {
  int64_t highest = shard.PositionOf(end - 1);
  if (shard.cp == 1) return highest;
  const int64_t chunk = shard.length / (2 * shard.cp);
  for (int64_t row = ((shard.start + begin) / chunk + 1) * chunk - shard.start; row < end; row += chunk)
    highest = -Min(-highest, -shard.PositionOf(row - 1));
  return highest;
}

/// Whether no query of the tile at row `query` sees a key of the tile at row `key`.
__device__ inline bool IsHidden(const AttentionShape& a, const int32_t* first_keys, int64_t batch, int64_t query,
                                int64_t key) {
  if (!a.causal) return false;
  const int64_t query_end = Min(query + kTile, a.queries), key_end = Min(key + kTile, a.keys);
  if (LowestPosition(a.key_shard, key, key_end) > HighestPosition(a.query_shard, query, query_end)) return true;
  if (a.window == 0 && first_keys == nullptr) return false;
  return HighestPosition(a.key_shard, key, key_end) <
         Lowest(
             a.query_shard, query, query_end, [&](int64_t row) { return a.FirstKey(first_keys, batch, row); });
}

/// A query sees the keys at its position and before. Rows after the last query see nothing; no query sees rows after
/// the last key. Without a mask all queries have the last position.
__device__ inline int64_t QueryPosition(const AttentionShape& a, int64_t row) {
  if (row >= a.queries) return -1;
  return a.causal ? a.query_shard.PositionOf(row) : INT64_MAX - 1;
}
__device__ inline int64_t KeyPosition(const AttentionShape& a, int64_t row) {
  if (row >= a.keys) return INT64_MAX;
  return a.causal ? a.key_shard.PositionOf(row) : 0;
}

/// Positions of the thread's 4 rows, or 4 columns, of a tile of keys.
struct OwnKeys {
  int64_t at[kOwn];

  __device__ OwnKeys(const AttentionShape& a, int64_t first) {
    for (int i = 0; i < kOwn; ++i) at[i] = KeyPosition(a, first + kSide * i);
  }
};

/// The same for queries, with the first keys that they see.
struct OwnQueries {
  int64_t at[kOwn], first_key[kOwn];

  __device__ OwnQueries(const AttentionShape& a, const int32_t* first_keys, int64_t batch, int64_t first) {
    for (int i = 0; i < kOwn; ++i) {
      const int64_t row = first + kSide * i;
      at[i] = QueryPosition(a, row);
      first_key[i] = a.causal && row < a.queries ? a.FirstKey(first_keys, batch, row) : 0;
    }
  }
  /// Whether query i of the thread sees a key at this position.
  __device__ bool Sees(int i, int64_t key) const { return first_key[i] <= key && key <= at[i]; }
};

/// Dropout factors of the probabilities of the thread's 4 queries.
struct OwnFactors {
  const DropoutMask& mask;
  const SequenceShard& keys;
  int64_t head;
  uint32_t step;
  int32_t tokens[kOwn] = {};

  __device__ OwnFactors(const DropoutMask& dropout, const AttentionShape& a, int64_t batch, int64_t of_head,
                        int64_t first)
      : mask(dropout), keys(a.key_shard), head(of_head), step(dropout.Drops() ? dropout.Step() : 0) {
    for (int i = 0; i < kOwn && mask.Drops(); ++i)
      if (first + kSide * i < a.queries) tokens[i] = mask.tokens[batch * a.queries + first + kSide * i];
  }
  /// The factor for query i of the thread and a row of keys.
  __device__ float At(int i, int64_t row) const {
    return mask.Drops() ? mask.OfProbability(tokens[i], head, keys.PositionOf(row), step) : 1.0f;
  }
};

/// Columns [column, column + 32) of 64 rows.
template <typename T>
__device__ void Stage(const TileRows<T>& rows, int64_t column, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads)
    to[i / kDepth * kPitch + i % kDepth] = rows.At(i / kDepth, column + i % kDepth);
}

/// dots[i][j] = the thread's row i of `a` times its column j as a row of `b`. Begins with a barrier.
template <typename T>
__device__ void RowDots(const TileRows<T>& a, const TileRows<T>& b, const Shared& s, float (&dots)[kOwn][kOwn]) {
  const Place at;
  for (auto& row : dots)
    for (float& x : row) x = 0;
  for (int64_t column = 0; column < a.features; column += kDepth) {
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
        for (int j = 0; j < kOwn; ++j) dots[i][j] += left[i] * right[j];
    }
  }
}

/// A thread's sums for its 4 rows of a result: columns x and x + 16 of every 32.
template <int kChunks>
struct Sums {
  float at[kChunks][kOwn][kOwnColumns] = {};

  /// Adds the tile of weights in shared memory times 64 rows. Begins with a barrier if the rows have features.
  template <typename T>
  __device__ void AddWeighted(const TileRows<T>& rows, const Shared& s) {
    const Place place;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * kDepth >= rows.features) break;
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

  /// Stores the rows that exist; `rows` has the layout of the result's tile, which begins at element `first`.
  template <typename T>
  __device__ void Store(const Array& to, int64_t first, const TileRows<T>& rows) const {
    const Place place;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwnColumns; ++j) {
          const int64_t column = chunk * kDepth + place.Column(j);
          if (place.Row(i) < rows.count && column < rows.features)
            Put(to, first + place.Row(i) * rows.stride + column, at[chunk][i][j]);
        }
  }
};

/// Sum over the 16 threads of a row.
__device__ inline float RowSum(float x) {
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}
__device__ inline float RowMaximum(float x) {
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

/// Calls f(T{}, Sums<kChunks>{}) for the element type of the inputs and the number of 32-element chunks that a head
/// of `features` needs.
template <typename F>
void ForKind(Dtype dtype, int64_t features, F f) {
  const auto with = [&](auto element) {
    if (features <= 64) return f(element, Sums<2>{});
    if (features <= 128) return f(element, Sums<4>{});
    f(element, Sums<8>{});
  };
  if (dtype == Dtype::kBf16) return with(__nv_bfloat16{});
  with(float{});
}

inline int64_t TilesOf(int64_t rows) { return (rows + kTile - 1) / kTile; }

}  // namespace espalier::cuda
