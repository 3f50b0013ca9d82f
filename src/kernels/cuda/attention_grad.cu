// The adjoint of attention, in fp32. With p the probabilities: dv_j = sum of p do_i, ds = p (do_i . v_j - do_i . o_i)
// scale, dq_i = sum of ds k_j, dk_j = sum of ds q_i (Dao 2023, algorithm 2). dq is summed by blocks of queries, dk and
// dv by blocks of keys: scores are computed twice, and no two blocks add to one place.
#include "attention.hpp"
#include "attention_tiles.cuh"

namespace espalier::cuda {
namespace {

/// do_i . o_i of the thread's 4 rows, in all 16 threads of a row.
template <typename T>
__device__ void MeanAdjoints(const TileRows<T>& o, const TileRows<T>& d_o, float (&mean)[kOwn]) {
  const Place at;
  for (int i = 0; i < kOwn; ++i) {
    float sum = 0;
    for (int64_t column = at.x; column < o.head_dim; column += kSide)
      sum += o.At(at.Row(i), column) * d_o.At(at.Row(i), column);
    mean[i] = RowSum(sum);
  }
}

/// Log of the softmax denominator of a query; 0 beyond the last.
__device__ float LseAt(const AttentionExtents& a, const AttentionInputs& in, int64_t batch, int64_t head,
                       int64_t query) {
  return query < a.queries ? in.lse[(batch * a.heads + head) * a.queries + query] : 0.0f;
}

/// A block for 64 queries of one head.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads)
    BackwardQueries(AttentionExtents a, AttentionInputs in, AttentionGradients out) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const auto [batch, head, kv_head, query] = QueryTileOfBlock(a);
  const float scale = 1.0f / sqrtf(static_cast<float>(a.head_dim));
  const TileRows<T> q = RowsOf<T>(in.q, a, batch, a.queries, a.heads, head, query);
  const TileRows<T> d_o = RowsOf<T>(in.d_o, a, batch, a.queries, a.heads, head, query);
  float mean[kOwn], lse[kOwn];
  MeanAdjoints(RowsOf<T>(in.o, a, batch, a.queries, a.heads, head, query), d_o, mean);
  for (int i = 0; i < kOwn; ++i) lse[i] = LseAt(a, in, batch, head, query + at.Row(i));
  Sums<kChunks> dq;
  const OwnPositions queries(QueryPosition, a, query + at.y);
  for (int64_t key = 0; key < a.keys; key += kTile) {
    if (IsHidden(a, query, key)) continue;
    const TileRows<T> k = RowsOf<T>(in.k, a, batch, a.keys, a.kv_heads, kv_head, key);
    float scores[kOwn][kOwn], adjoints[kOwn][kOwn];
    RowProducts(q, k, s, scores);
    RowProducts(d_o, RowsOf<T>(in.v, a, batch, a.keys, a.kv_heads, kv_head, key), s, adjoints);
    const OwnPositions keys(KeyPosition, a, key + at.x);
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) {
        const bool sees = keys.at[j] <= queries.at[i];
        s.weights[at.Row(i) * kWeightPitch + at.Column(j)] =
            sees ? expf(scores[i][j] * scale - lse[i]) * (adjoints[i][j] - mean[i]) * scale : 0.0f;
      }
    dq.AddWeighted(k, s);
  }
  dq.Store(out.dq, out.bf16, ((batch * a.queries + query) * a.heads + head) * a.head_dim, q.stride, q.count,
           a.head_dim);
}

/// A block for 64 keys of one kv head, which all heads of its group see. Rows of its tiles are keys, columns queries.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads)
    BackwardKeys(AttentionExtents a, AttentionInputs in, AttentionGradients out) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const int64_t kv_heads = a.batch * a.kv_heads, key = int64_t{blockIdx.x} / kv_heads * kTile;
  const int64_t batch = int64_t{blockIdx.x} % kv_heads / a.kv_heads, kv_head = int64_t{blockIdx.x} % a.kv_heads,
                group = a.heads / a.kv_heads;
  const float scale = 1.0f / sqrtf(static_cast<float>(a.head_dim));
  const TileRows<T> k = RowsOf<T>(in.k, a, batch, a.keys, a.kv_heads, kv_head, key);
  const TileRows<T> v = RowsOf<T>(in.v, a, batch, a.keys, a.kv_heads, kv_head, key);
  Sums<kChunks> dk, dv;
  const OwnPositions keys(KeyPosition, a, key + at.y);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < a.queries; query += kTile) {
      if (IsHidden(a, query, key)) continue;
      const TileRows<T> q = RowsOf<T>(in.q, a, batch, a.queries, a.heads, head, query);
      const TileRows<T> d_o = RowsOf<T>(in.d_o, a, batch, a.queries, a.heads, head, query);
      float mean[kOwn], probabilities[kOwn][kOwn], adjoints[kOwn][kOwn];
      MeanAdjoints(RowsOf<T>(in.o, a, batch, a.queries, a.heads, head, query), d_o, mean);
      // The last readers of the tile before have passed a barrier since.
      for (int i = 0; i < kOwn && at.x == 0; ++i) {
        s.mean[at.Row(i)] = mean[i];
        s.lse[at.Row(i)] = LseAt(a, in, batch, head, query + at.Row(i));
      }
      RowProducts(k, q, s, probabilities);
      const OwnPositions queries(QueryPosition, a, query + at.x);
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j) {
          const bool sees = keys.at[i] <= queries.at[j];
          probabilities[i][j] = sees ? expf(probabilities[i][j] * scale - s.lse[at.Column(j)]) : 0.0f;
          s.weights[at.Row(i) * kWeightPitch + at.Column(j)] = probabilities[i][j];
        }
      dv.AddWeighted(d_o, s);
      RowProducts(v, d_o, s, adjoints);
      for (int i = 0; i < kOwn; ++i)
        for (int j = 0; j < kOwn; ++j)
          s.weights[at.Row(i) * kWeightPitch + at.Column(j)] =
              probabilities[i][j] * (adjoints[i][j] - s.mean[at.Column(j)]) * scale;
      dk.AddWeighted(q, s);
    }
  }
  const int64_t first = ((batch * a.keys + key) * a.kv_heads + kv_head) * a.head_dim;
  dk.Store(out.dk, out.bf16, first, k.stride, k.count, a.head_dim);
  dv.Store(out.dv, out.bf16, first, k.stride, k.count, a.head_dim);
}

}  // namespace

void LaunchAttentionGrad(const AttentionExtents& a, const AttentionInputs& inputs, const AttentionGradients& results,
                         cudaStream_t stream) {
  if (a.batch * a.heads == 0) return;
  const int64_t query_blocks = TilesOf(a.queries) * a.batch * a.heads,
                key_blocks = TilesOf(a.keys) * a.batch * a.kv_heads;
  ForKind(inputs.bf16, a.head_dim, [&]<typename T, int kChunks>(T, Sums<kChunks>) {
    const auto launch = [&](auto kernel, int64_t blocks) {
      if (blocks > 0)
        Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes, stream, a, inputs, results);
    };
    launch(BackwardQueries<T, kChunks>, query_blocks);
    launch(BackwardKeys<T, kChunks>, key_blocks);
  });
}

}  // namespace espalier::cuda
