// Attention over cached latents: a task is a query of one head, in fp32.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/blocks.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

template <typename T>
void OneQuery(const LatentAttentionArgs& a, int64_t batch, int64_t s, int64_t head) {
  const int64_t row = (batch * a.queries + s) * a.heads + head, e = a.nope + a.rope;
  const T *q = a.q.As<T>() + row * e, *w = a.w.As<T>() + head * (a.nope + a.value) * a.rank,
          *latents = a.latents.As<T>() + batch * a.tokens * a.rank,
          *rotated = a.rotated.As<T>() + batch * a.tokens * a.rope;
  const int64_t begin = a.Begin(s), end = a.End(s), keys = end - begin;
  const int64_t rank = RoundUp(a.rank, kLanes), queried = RoundUp(e, kLanes), result = RoundUp(a.value, kLanes);
  float* query = ScratchOf<float>(queried + 2 * rank + result + RoundUp(keys, kLanes));
  float *projected = query + queried, *mean = projected + rank, *o = mean + rank, *scores = o + result;
  ForLanes(0, e, [&](int64_t c, auto lanes) { Store(query + c, Load(q + c, lanes), lanes); });
  std::fill_n(projected, 2 * rank, 0.0f);
  for (int64_t n = 0; n < a.nope; ++n) AddScaled(projected, w + n * a.rank, query[n], a.rank);
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    const float score = Dot(projected, latents + (begin + j) * a.rank, a.rank) +
                        Dot(query + a.nope, rotated + (begin + j) * a.rope, a.rope);
    scores[j] = score * a.scale;
    largest = std::max(largest, scores[j]);
  }
  const float sum = Exponentiate(scores, keys, largest);
  for (int64_t j = 0; j < keys; ++j) AddScaled(mean, latents + (begin + j) * a.rank, scores[j] / sum, a.rank);
  for (int64_t v = 0; v < a.value; ++v) o[v] = Dot(mean, w + (a.nope + v) * a.rank, a.rank);
  T* to = a.o.As<T>() + row * a.value;
  ForLanes(0, a.value, [&](int64_t v, auto lanes) { Store(to + v, Load(o + v, lanes), lanes); });
  a.lse[(batch * a.heads + head) * a.queries + s] = largest + std::log(sum);
}

}  // namespace

void LatentAttention(const LatentAttentionArgs& a) {
  const int64_t tasks = a.batch * a.queries * a.heads;
  ForElementType(a.q.dtype, [&]<typename T>(T) {
    ParallelTasks(tasks, [&](int64_t task) {
      OneQuery<T>(a, task / a.heads / a.queries, task / a.heads % a.queries, task % a.heads);
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
