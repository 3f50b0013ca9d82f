// Attention in tiles with a running softmax (Milakov and Gimelshein 2018; Dao 2023, algorithm 1), in fp32.
#include "tiles.cuh"

namespace espalier::cuda {
namespace {

constexpr float kInfinity = INFINITY;

/// State of the softmax for the thread's 4 queries, the same in all 16 threads of a row: the largest score so far, and
/// the sum of exp(score - largest).
struct RunningSoftmax {
  float largest[kOwn], sum[kOwn];

  /// Converts scores of the tile of keys at row `key` into weights in shared memory; returns in `rescale` the factor of
  /// row i's earlier sums. Dropout applies to the weights, not to the sums.
  __device__ void Add(float (&scores)[kOwn][kOwn], float (&rescale)[kOwn], const Shared& s, const OwnFactors& factors,
                      int64_t key) {
    const Place at;
    for (int i = 0; i < kOwn; ++i) {
      float maximum = largest[i];
      for (int j = 0; j < kOwn; ++j) maximum = fmaxf(maximum, scores[i][j]);
      maximum = RowMaximum(maximum);
      float added = 0;
      for (int j = 0; j < kOwn; ++j) {
        const float weight = scores[i][j] == -kInfinity ? 0.0f : expf(scores[i][j] - maximum);
        s.weights[at.Row(i) * kWeightPitch + at.Column(j)] = weight * factors.At(i, key + at.Column(j));
        added += weight;
      }
      rescale[i] = largest[i] == maximum ? 1.0f : expf(largest[i] - maximum);
      sum[i] = sum[i] * rescale[i] + RowSum(added);
      largest[i] = maximum;
    }
  }
};

/// One block per 64 queries of a head.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads) AttentionKernel(AttentionArgs a) {
  SHARED_ARRAY(float, memory);
  const Shared s(memory);
  const Place at;
  const QueryTile tile(a.shape);
  const float scale = ScaleOf(a.shape);
  const TileRows<T> q = tile.Queries<T>(a.q);
  RunningSoftmax softmax;
  for (int i = 0; i < kOwn; ++i) softmax.largest[i] = -kInfinity, softmax.sum[i] = 0;
  Sums<kChunks> o;
  const OwnQueries queries(a.shape, a.first_keys, tile.batch, tile.query + at.y);
  const OwnFactors factors(a.dropout, a.shape, tile.batch, tile.head, tile.query + at.y);
  for (int64_t key = 0; key < a.shape.keys; key += kTile) {
    if (IsHidden(a.shape, a.first_keys, tile.batch, tile.query, key)) continue;
    float scores[kOwn][kOwn], rescale[kOwn];
    RowDots(q, tile.Keys<T>(a.k, key), s, scores);
    const OwnKeys keys(a.shape, key + at.x);
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) scores[i][j] = queries.Sees(i, keys.at[j]) ? scores[i][j] * scale : -kInfinity;
    softmax.Add(scores, rescale, s, factors, key);
    for (int i = 0; i < kOwn; ++i) o.ScaleRow(i, rescale[i]);
    o.AddWeighted(tile.Values<T>(a.v, key), s);
  }
  for (int i = 0; i < kOwn; ++i) {
    o.ScaleRow(i, softmax.sum[i] == 0 ? 0.0f : 1.0f / softmax.sum[i]);
    if (at.x == 0 && at.Row(i) < q.count) a.lse[tile.LseOffset(at.Row(i))] = softmax.largest[i] + logf(softmax.sum[i]);
  }
  o.Store(a.o, tile.OffsetOfResults(), tile.Results<T>(a.o));
}

}  // namespace

void LaunchAttention(const AttentionArgs& a, cudaStream_t stream) {
  const int64_t blocks = TilesOf(a.shape.queries) * a.shape.batch * a.shape.heads;
  if (blocks == 0) return;
  ForKind(a.q.dtype, a.shape.ValueDim(), [&]<typename T, int kChunks>(T, Sums<kChunks>) {
    Launch(AttentionKernel<T, kChunks>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kTileBytes, stream, a);
  });
}

}  // namespace espalier::cuda
