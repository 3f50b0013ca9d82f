// Attention over cached latents, head by head.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// A query of one head.
void OneQuery(const LatentAttentionArgs& a, int64_t b, int64_t s, int64_t h) {
  const int64_t q = ((b * a.queries + s) * a.heads + h) * (a.nope + a.rope), w = h * (a.nope + a.value) * a.rank;
  const int64_t end = a.End(s), begin = a.Begin(s);
  std::vector<double> projected(static_cast<size_t>(a.rank), 0), mean(projected), scores;
  for (int64_t c = 0; c < a.rank; ++c)
    for (int64_t n = 0; n < a.nope; ++n)
      projected[static_cast<size_t>(c)] += Get(a.q, q + n) * Get(a.w, w + n * a.rank + c);
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t t = begin; t < end; ++t) {
    double score = 0;
    for (int64_t c = 0; c < a.rank; ++c)
      score += projected[static_cast<size_t>(c)] * Get(a.latents, (b * a.tokens + t) * a.rank + c);
    for (int64_t c = 0; c < a.rope; ++c)
      score += Get(a.q, q + a.nope + c) * Get(a.rotated, (b * a.tokens + t) * a.rope + c);
    scores.push_back(score * a.scale);
    largest = std::max(largest, scores.back());
  }
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < a.rank; ++c)
      mean[static_cast<size_t>(c)] +=
          scores[static_cast<size_t>(t - begin)] / sum * Get(a.latents, (b * a.tokens + t) * a.rank + c);
  for (int64_t v = 0; v < a.value; ++v) {
    double x = 0;
    for (int64_t c = 0; c < a.rank; ++c) x += mean[static_cast<size_t>(c)] * Get(a.w, w + (a.nope + v) * a.rank + c);
    Set(a.o, ((b * a.queries + s) * a.heads + h) * a.value + v, x);
  }
  a.lse[(b * a.heads + h) * a.queries + s] = static_cast<float>(largest + std::log(sum));
}

}  // namespace

void LatentAttention(const LatentAttentionArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t s = 0; s < a.queries; ++s)
      for (int64_t h = 0; h < a.heads; ++h) OneQuery(a, b, s, h);
}

}  // namespace espalier::reference
