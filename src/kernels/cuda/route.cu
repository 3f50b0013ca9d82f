// One warp per token. The experts are found one after the other: each time the first of those that follow the last one
// found in the order of logits. So nothing is marked, any number of experts works, and the row of logits comes from the
// first-level cache.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/warp_rows.cuh"
#include "kernels/router.hpp"

namespace espalier::cuda {
namespace {

/// An expert's place in the order of logits (IsBefore): the first has the largest number. Above the number of the
/// expert, whose bits are inverted, are the bits of the logit in the order of fp32; 0 for a NaN.
__device__ uint64_t OrderOf(float logit, int32_t expert) {
  constexpr uint32_t kSign = 1u << 31;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const uint32_t order = logit != logit ? 0 : (bits & kSign) != 0 ? ~bits : bits | kSign;
  return uint64_t{order} << 32 | ~static_cast<uint32_t>(expert);
}
__device__ int32_t ExpertOf(uint64_t order) { return static_cast<int32_t>(~static_cast<uint32_t>(order)); }

struct LargerOrder {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

/// A token's row of logits, and its scores. All lanes of a warp make and use it together.
template <typename T>
class Scores {
 public:
  __device__ Scores(const RouterRule& rule, const T* logits, int64_t experts)
      : rule_(rule), logits_(logits), experts_(experts) {
    if (rule.sigmoid) return;
    max_ = LargestOverWarp(experts, [&](int64_t e) { return Logit(e); });
    factor_ = 1.0f / SumOverWarp(experts, [&](int64_t e) { return expf(Logit(e) - max_); });
  }

  __device__ float Logit(int64_t e) const { return Widen(logits_[e]); }
  __device__ float Of(int64_t e) const { return rule_.sigmoid ? SigmoidOf(Logit(e)) : expf(Logit(e) - max_) * factor_; }
  /// What the divisor of weights has besides the chosen scores.
  __device__ float LeastSum() const { return rule_.sigmoid ? kLeastScoreSum : 0.0f; }

  /// The first expert after `last` in the order of logits.
  __device__ uint64_t After(uint64_t last) const {
    uint64_t first = 0;
    ForLanesOfWarp(experts_, [&](int64_t e) {
      const uint64_t order = OrderOf(Logit(e), static_cast<int32_t>(e));
      if (order < last && order > first) first = order;
    });
    return WarpReduce(first, LargerOrder{});
  }

 private:
  const RouterRule& rule_;
  const T* logits_;
  int64_t experts_;
  float max_ = 0, factor_ = 1;
};

template <typename T>
__global__ void RouteKernel(RouteArgs a) {
  ForWarpRows(a.tokens, [&](int64_t t) {
    const Scores<T> scores(a.rule, a.logits.As<T>() + t * a.experts, a.experts);
    float* weights = a.weights + t * a.per_token;
    int32_t* chosen = a.chosen + t * a.per_token;
    float sum = scores.LeastSum();
    uint64_t last = UINT64_MAX;
    for (int64_t i = 0; i < a.per_token; ++i) {
      last = scores.After(last);
      const int32_t expert = ExpertOf(last);
      const float score = scores.Of(expert);
      sum += score;
      if (LaneOfWarp() != i % kWarp) continue;
      chosen[i] = expert;
      weights[i] = score;
    }
    const float factor = static_cast<float>(a.rule.scale) / (a.rule.normalize ? sum : 1.0f);
    ForLanesOfWarp(a.per_token, [&](int64_t i) { weights[i] *= factor; });  // a lane its own scores
  });
}

/// The formulas are in kernels/reference/route.cpp. Only softmax without `normalize` gives every expert an adjoint: the
/// other weights depend on the chosen logits alone.
template <typename T>
__global__ void RouteGradKernel(RouteGradArgs a) {
  ForWarpRows(a.tokens, [&](int64_t t) {
    const Scores<T> scores(a.rule, a.logits.As<T>() + t * a.experts, a.experts);
    const int32_t* chosen = a.chosen + t * a.per_token;
    const float *dweights = a.dweights + t * a.per_token, scale = static_cast<float>(a.rule.scale);
    T* dlogits = a.dlogits.As<T>() + t * a.experts;
    const auto score = [&](int64_t i) { return scores.Of(chosen[i]); };
    const bool normalize = a.rule.normalize, every = !a.rule.sigmoid && !normalize;
    const float norm = normalize ? scores.LeastSum() + SumOverWarp(a.per_token, score) : 1.0f;
    const float common =
        normalize ? SumOverWarp(a.per_token, [&](int64_t i) { return dweights[i] * (score(i) / norm); }) : 0.0f;
    const auto adjoint = [&](int64_t i) { return scale * (dweights[i] - common) / norm; };
    const float sum = every ? SumOverWarp(a.per_token, [&](int64_t i) { return adjoint(i) * score(i); }) : 0.0f;
    ForLanesOfWarp(a.experts, [&](int64_t e) { dlogits[e] = Narrow<T>(every ? scores.Of(e) * -sum : 0.0f); });
    __syncwarp();  // the chosen are written once more
    ForLanesOfWarp(a.per_token, [&](int64_t i) {
      const float slope = a.rule.sigmoid ? SigmoidOf(-scores.Logit(chosen[i])) : 1.0f;
      dlogits[chosen[i]] = Narrow<T>(score(i) * slope * (adjoint(i) - sum));
    });
  });
}

}  // namespace

void Route(const RouteArgs& a, const LaunchContext& context) {
  if (a.tokens == 0) return;
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    Launch(RouteKernel<T>, WarpRowBlocks(a.tokens), dim3(kThreads), 0, context.stream, a);
  });
}

void RouteGrad(const RouteGradArgs& a, const LaunchContext& context) {
  if (a.tokens == 0) return;
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    Launch(RouteGradKernel<T>, WarpRowBlocks(a.tokens), dim3(kThreads), 0, context.stream, a);
  });
}

}  // namespace espalier::cuda
