#include "kernels/cpu/attention/one_query.hpp"

#include <cmath>
#include <limits>

#include "kernels/cpu/attention/blocks.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

/// The query of one head: scores of its keys, their softmax, and the mean of the values under it.
template <typename T>
void OneHead(const AttentionArgs& a, int64_t batch, int64_t head) {
  const AttentionShape& s = a.shape;
  const int64_t e = s.head_dim, d = s.ValueDim(), query = batch * s.heads + head;
  const HeadPlace keys_at = KeyHead(s, batch, s.KvHeadOf(head)), values_at = ValueHead(s, batch, s.KvHeadOf(head));
  const T *k = a.k.As<T>() + keys_at.first, *v = a.v.As<T>() + values_at.first, *q = a.q.As<T>() + query * e;
  const int64_t begin = std::max<int64_t>(0, s.FirstKey(a.first_keys, batch, 0));
  const int64_t end = std::min(s.keys, s.query_shard.PositionOf(0) + 1), keys = std::max<int64_t>(0, end - begin);
  float* scores = ScratchOf<float>(RoundUp(keys, kLanes) + RoundUp(d, kLanes));
  float* sums = scores + RoundUp(keys, kLanes);
  const float scale = ScaleOf(s);
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    scores[j] = Dot(q, k + (begin + j) * keys_at.stride, e) * scale;
    largest = std::max(largest, scores[j]);
  }
  const float sum = Exponentiate(scores, keys, largest);
  ForLanes(0, d, [&](int64_t c, auto lanes) { Store(sums + c, Floats{}, lanes); });
  for (int64_t j = 0; j < keys; ++j) AddScaled(sums, v + (begin + j) * values_at.stride, scores[j], d);
  const float factor = keys == 0 ? 0.0f : 1.0f / sum;
  a.lse[query] = keys == 0 ? largest : largest + std::log(sum);
  ForElementType(a.o.dtype, [&]<typename O>(O) {
    O* o = a.o.As<O>() + query * d;
    ForLanes(0, d, [&](int64_t c, auto lanes) { Store(o + c, Load(sums + c, lanes) * factor, lanes); });
  });
}

}  // namespace

void AttentionOfOneQuery(const AttentionArgs& a) {
  ForElementType(a.q.dtype, [&]<typename T>(T) {
    ParallelTasks(a.shape.batch * a.shape.heads,
                  [&](int64_t task) { OneHead<T>(a, task / a.shape.heads, task % a.shape.heads); });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
