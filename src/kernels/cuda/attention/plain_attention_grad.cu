// The gradient of attention, in fp32. With p the probabilities and f the factors of dropout: dv_j = sum of p f do_i, ds
// = p (f do_i . v_j - do_i . o_i) scale, dq_i = sum of ds k_j, dk_j = sum of ds q_i (Dao 2023, algorithm 2). dq is
// summed by blocks of queries, dk and dv by blocks of keys: scores are computed twice, and no two blocks add to the
// same element.
#include <algorithm>

#include "tiles.cuh"

namespace espalier::cuda {
namespace {

/// mean[i] = do_i . o_i for the thread's 4 rows, in all 16 threads of a row.
template <typename T>
__device__ void MeanAdjoints(const TileRows<T>& o, const TileRows<T>& d_o, float (&mean)[kOwn]) {
  const Place at;
  for (int i = 0; i < kOwn; ++i) {
    float sum = 0;
    for (int64_t column = at.x; column < o.features; column += kSide)
      sum += o.At(at.Row(i), column) * d_o.At(at.Row(i), column);
    mean[i] = RowSum(sum);
  }
}

/// Log of the softmax denominator of a query; 0 after the last query.
__device__ float LseAt(const AttentionGradArgs& a, int64_t batch, int64_t head, int64_t query) {
  const AttentionShape& s = a.shape;
  return query < s.queries ? a.lse[(batch * s.heads + head) * s.queries + query] : 0.0f;
}

/// dq: one block per 64 queries of a head.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads) QueryGradKernel(AttentionGradArgs a) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const QueryTile tile(a.shape);
  const float scale = ScaleOf(a.shape);
  const TileRows<T> q = tile.Queries<T>(a.q), d_o = tile.Results<T>(a.d_o);
  float mean[kOwn], lse[kOwn];
  MeanAdjoints(tile.Results<T>(a.o), d_o, mean);
  for (int i = 0; i < kOwn; ++i) lse[i] = LseAt(a, tile.batch, tile.head, tile.query + at.Row(i));
  Sums<kChunks> dq;
  const OwnQueries queries(a.shape, a.first_keys, tile.batch, tile.query + at.y);
  const OwnFactors factors(a.dropout, a.shape, tile.batch, tile.head, tile.query + at.y);
  for (int64_t key = 0; key < a.shape.keys; key += kTile) {
    if (IsHidden(a.shape, a.first_keys, tile.batch, tile.query, key)) continue;
    const TileRows<T> k = tile.Keys<T>(a.k, key);
    float scores[kOwn][kOwn], adjoints[kOwn][kOwn];
    RowDots(q, k, s, scores);
    RowDots(d_o, tile.Values<T>(a.v, key), s, adjoints);
    const OwnKeys keys(a.shape, key + at.x);
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) {
        const bool sees = queries.Sees(i, keys.at[j]);
        const float adjoint = adjoints[i][j] * factors.At(i, key + at.Column(j)) - mean[i];
        s.weights[at.Row(i) * kWeightPitch + at.Column(j)] =
            sees ? expf(scores[i][j] * scale - lse[i]) * adjoint * scale : 0.0f;
      }
    dq.AddWeighted(k, s);
  }
  dq.Store(a.dq, tile.Offset(), q);
}

/// dk and dv: one block per 64 keys of a kv head, which all heads of its group share. Rows of its tiles are keys,
/// columns are queries.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads) KeyGradKernel(AttentionGradArgs a) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const AttentionShape& x = a.shape;
  const int64_t kv_heads = x.batch * x.kv_heads, key = int64_t{blockIdx.x} / kv_heads * kTile;
  const int64_t batch = int64_t{blockIdx.x} % kv_heads / x.kv_heads, kv_head = int64_t{blockIdx.x} % x.kv_heads,
                group = x.heads / x.kv_heads;
  const float scale = ScaleOf(x);
  const TileRows<T> k = KeyRows<T>(a.k, x, batch, kv_head, key), v = ValueRows<T>(a.v, x, batch, kv_head, key);
  Sums<kChunks> dk, dv;
  const OwnKeys keys(x, key + at.y);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < x.queries; query += kTile) {
      if (IsHidden(x, a.first_keys, batch, query, key)) continue;
      const TileRows<T> q = QueryRows<T>(a.q, x, batch, head, query), d_o = ResultRows<T>(a.d_o, x, batch, head, query);
      float mean[kOwn], probabilities[kOwn][kOwn], adjoints[kOwn][kOwn];
      MeanAdjoints(ResultRows<T>(a.o, x, batch, head, query), d_o, mean);
      // All threads have passed a barrier since the previous tile was last read.
      for (int i = 0; i < kOwn && at.x == 0; ++i) {
        s.mean[at.Row(i)] = mean[i];
        s.lse[at.Row(i)] = LseAt(a, batch, head, query + at.Row(i));
      }
      RowDots(k, q, s, probabilities);
      const OwnQueries queries(x, a.first_keys, batch, query + at.x);
      const OwnFactors own(a.dropout, x, batch, head, query + at.x);
      float factors[kOwn][kOwn];
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) {
          const bool sees = queries.Sees(j, keys.at[i]);
          probabilities[i][j] = sees ? expf(probabilities[i][j] * scale - s.lse[at.Column(j)]) : 0.0f;
          factors[i][j] = own.At(j, key + at.Row(i));
          s.weights[at.Row(i) * kWeightPitch + at.Column(j)] = probabilities[i][j] * factors[i][j];
        }
      dv.AddWeighted(d_o, s);
      RowDots(v, d_o, s, adjoints);
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j)
          s.weights[at.Row(i) * kWeightPitch + at.Column(j)] =
              probabilities[i][j] * (adjoints[i][j] * factors[i][j] - s.mean[at.Column(j)]) * scale;
      dk.AddWeighted(q, s);
    }
  }
  dk.Store(a.dk, KeyOffset(x, batch, kv_head, key), k);
  dv.Store(a.dv, ValueOffset(x, batch, kv_head, key), v);
}

}  // namespace

void LaunchAttentionGrad(const AttentionGradArgs& a, cudaStream_t stream) {
  const AttentionShape& s = a.shape;
  if (s.batch * s.heads == 0) return;
  const int64_t query_blocks = TilesOf(s.queries) * s.batch * s.heads,
                key_blocks = TilesOf(s.keys) * s.batch * s.kv_heads;
  ForKind(a.q.dtype, std::max(s.head_dim, s.ValueDim()), [&]<typename T, int kChunks>(T, Sums<kChunks>) {
    const auto launch = [&](auto kernel, int64_t blocks) {
      if (blocks > 0) Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kTileBytes, stream, a);
    };
    launch(QueryGradKernel<T, kChunks>, query_blocks);
    launch(KeyGradKernel<T, kChunks>, key_blocks);
  });
}

}  // namespace espalier::cuda
