// Attention in tiles with a running softmax (Milakov and Gimelshein 2018; Dao 2023, algorithm 1), in fp32.
#include "attention.hpp"
#include "attention_tiles.cuh"

namespace espalier::cuda {
namespace {

constexpr float kInfinity = INFINITY;

/// What the thread's 4 queries have seen so far, in all 16 threads of a row: the largest score, and the sum of
/// exp(score - largest).
struct RunningSoftmax {
  float largest[kOwn], sum[kOwn];

  /// Turns scores into weights in shared memory; returns in `shrink` by what earlier sums of row i shrink.
  __device__ void Add(float (&scores)[kOwn][kOwn], float (&shrink)[kOwn], const Shared& s) {
    const Place at;
    for (int i = 0; i < kOwn; ++i) {
      float most = largest[i];
      for (int j = 0; j < kOwn; ++j) most = fmaxf(most, scores[i][j]);
      most = RowMaximum(most);
      float added = 0;
      for (int j = 0; j < kOwn; ++j) {
        const float weight = scores[i][j] == -kInfinity ? 0.0f : expf(scores[i][j] - most);
        s.weights[at.Row(i) * kWeightPitch + at.Column(j)] = weight;
        added += weight;
      }
      shrink[i] = largest[i] == most ? 1.0f : expf(largest[i] - most);
      sum[i] = sum[i] * shrink[i] + RowSum(added);
      largest[i] = most;
    }
  }
};

/// A block for 64 queries of one head; those that see most keys come first.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads) Forward(AttentionExtents a, AttentionInputs in, AttentionResults out) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const auto [batch, head, kv_head, query] = QueryTileOfBlock(a);
  const float scale = 1.0f / sqrtf(static_cast<float>(a.head_dim));
  const TileRows<T> q = RowsOf<T>(in.q, a, batch, a.queries, a.heads, head, query);
  RunningSoftmax softmax;
  for (int i = 0; i < kOwn; ++i) softmax.largest[i] = -kInfinity, softmax.sum[i] = 0;
  Sums<kChunks> o;
  const OwnPositions queries(QueryPosition, a, query + at.y);
  for (int64_t key = 0; key < a.keys; key += kTile) {
    if (IsHidden(a, query, key)) continue;
    float scores[kOwn][kOwn], shrink[kOwn];
    RowProducts(q, RowsOf<T>(in.k, a, batch, a.keys, a.kv_heads, kv_head, key), s, scores);
    const OwnPositions keys(KeyPosition, a, key + at.x);
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) scores[i][j] = keys.at[j] <= queries.at[i] ? scores[i][j] * scale : -kInfinity;
    softmax.Add(scores, shrink, s);
    for (int i = 0; i < kOwn; ++i) o.ScaleRow(i, shrink[i]);
    o.AddWeighted(RowsOf<T>(in.v, a, batch, a.keys, a.kv_heads, kv_head, key), s);
  }
  for (int i = 0; i < kOwn; ++i) {
    o.ScaleRow(i, softmax.sum[i] == 0 ? 0.0f : 1.0f / softmax.sum[i]);
    if (at.x == 0 && at.Row(i) < q.count)
      out.lse[(batch * a.heads + head) * a.queries + query + at.Row(i)] = softmax.largest[i] + logf(softmax.sum[i]);
  }
  o.Store(out.o, out.bf16, ((batch * a.queries + query) * a.heads + head) * a.head_dim, q.stride, q.count, a.head_dim);
}

}  // namespace

void LaunchAttention(const AttentionExtents& a, const AttentionInputs& inputs, const AttentionResults& results,
                     cudaStream_t stream) {
  const int64_t blocks = TilesOf(a.queries) * a.batch * a.heads;
  if (blocks == 0) return;
  ForKind(inputs.bf16, a.head_dim, [&]<typename T, int kChunks>(T, Sums<kChunks>) {
    Launch(Forward<T, kChunks>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes, stream, a, inputs,
           results);
  });
}

}  // namespace espalier::cuda
