// Attention over cached latents. A block has one query of one head and takes as many tokens at a time as it has
// threads: each thread scores one, then each sums some columns of the latents under the online softmax (Milakov and
// Gimelshein 2018).
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/reduce.cuh"

namespace espalier::cuda {
namespace {

constexpr int kTokens = 128;  // threads

template <typename T>
__global__ void LatentAttentionKernel(LatentAttentionArgs a) {
  SHARED_ARRAY(float, projected);  // [rank], then the sums of the latents [rank]
  __shared__ float p[kTokens];
  float* mean = projected + a.rank;
  ForRows(a.batch * a.queries * a.heads, [&](int64_t row) {
    const int64_t head = row % a.heads, s = row / a.heads % a.queries, batch = row / a.heads / a.queries;
    const T *q = a.q.As<T>() + row * (a.nope + a.rope), *w = a.w.As<T>() + head * (a.nope + a.value) * a.rank,
            *latents = a.latents.As<T>() + batch * a.tokens * a.rank,
            *rotated = a.rotated.As<T>() + batch * a.tokens * a.rope;
    __syncthreads();  // the last row's sums have been read
    for (int64_t c = threadIdx.x; c < a.rank; c += kTokens) {
      float sum = 0;
      for (int64_t n = 0; n < a.nope; ++n) sum += Widen(q[n]) * Widen(w[n * a.rank + c]);
      projected[c] = sum;
      mean[c] = 0;
    }
    __syncthreads();
    const int64_t begin = a.Begin(s), end = a.End(s);
    DEVICE_CHECK(begin < end && end <= a.tokens);
    float largest = -INFINITY, total = 0;
    for (int64_t first = begin; first < end; first += kTokens) {
      const int64_t t = first + threadIdx.x, count = end - first < kTokens ? end - first : kTokens;
      float score = -INFINITY;
      if (t < end) {
        score = 0;
        for (int64_t c = 0; c < a.rank; ++c) score += projected[c] * Widen(latents[t * a.rank + c]);
        for (int64_t c = 0; c < a.rope; ++c) score += Widen(q[a.nope + c]) * Widen(rotated[t * a.rope + c]);
        score *= a.scale;
      }
      const float before = largest;
      largest = Larger{}(largest, BlockReduce(score, -INFINITY, Larger{}));
      const float kept = expf(before - largest), mine = expf(score - largest);
      p[threadIdx.x] = mine;
      total = total * kept + BlockSum(mine);  // and all have written p
      for (int64_t c = threadIdx.x; c < a.rank; c += kTokens) {
        float sum = mean[c] * kept;
        for (int64_t j = 0; j < count; ++j) sum += p[j] * Widen(latents[(first + j) * a.rank + c]);
        mean[c] = sum;
      }
      __syncthreads();  // p has been read
    }
    for (int64_t v = threadIdx.x; v < a.value; v += kTokens) {
      float sum = 0;
      for (int64_t c = 0; c < a.rank; ++c) sum += mean[c] * Widen(w[(a.nope + v) * a.rank + c]);
      a.o.As<T>()[row * a.value + v] = Narrow<T>(sum / total);
    }
    if (threadIdx.x == 0) a.lse[(batch * a.heads + head) * a.queries + s] = largest + logf(total);
  });
}

}  // namespace

void LatentAttention(const LatentAttentionArgs& a, const LaunchContext& context) {
  const int64_t rows = a.batch * a.queries * a.heads;
  if (rows == 0) return;
  ForElementType(a.q.dtype, [&]<typename T>(T) {
    Launch(LatentAttentionKernel<T>, RowBlocks(rows), kTokens, 2 * static_cast<size_t>(a.rank) * sizeof(float),
           context.stream, a);
  });
}

}  // namespace espalier::cuda
