// One warp per token. The experts are found one after the other: each time the first of those that follow the last one
// found in the order of their values. So nothing is marked, any number of experts works, and the row of logits comes
// from the first-level cache.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/warp_rows.cuh"
#include "kernels/router.hpp"

namespace espalier::cuda {
namespace {

/// An expert's place in the order of values (IsBefore): the first has the largest number. Above the number of the
/// expert, whose bits are inverted, are the bits of the value in the order of fp32; 0 for a NaN.
__device__ uint64_t OrderOf(float value, int32_t expert) {
  constexpr uint32_t kSign = 1u << 31;
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
  const uint32_t order = value != value ? 0 : (bits & kSign) != 0 ? ~bits : bits | kSign;
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
  /// The part of the weights' divisor besides the chosen scores.
  __device__ float MinSum() const { return rule_.sigmoid ? kMinScoreSum : 0.0f; }

 private:
  const RouterRule& rule_;
  const T* logits_;
  int64_t experts_;
  float max_ = 0, factor_ = 1;
};

/// The order in which a token's experts are chosen.
template <typename T>
class Choice {
 public:
  __device__ Choice(const RouteArgs& a, const Scores<T>& scores) : a_(a), scores_(scores) {
    if (a.rule.groups > 1) kept_ = KeptGroups();
  }

  /// The first expert after `last`.
  __device__ uint64_t After(uint64_t last) const {
    return FirstOf(a_.experts, last, [&](int64_t e) { return Value(e); });
  }

 private:
  /// The first of n numbers after `last` in the order of value(i).
  template <typename F>
  __device__ static uint64_t FirstOf(int64_t n, uint64_t last, F value) {
    uint64_t first = 0;
    ForLanesOfWarp(n, [&](int64_t i) {
      const uint64_t order = OrderOf(value(i), static_cast<int32_t>(i));
      if (order < last && order > first) first = order;
    });
    return WarpReduce(first, LargerOrder{});
  }

  /// The number by which experts are chosen: without a bias and groups the logit.
  __device__ float Value(int64_t e) const {
    if ((kept_ >> (e / EachGroup()) & 1) == 0) return -INFINITY;
    return a_.bias != nullptr ? scores_.Of(e) + a_.bias[e] : a_.rule.groups > 1 ? scores_.Of(e) : scores_.Logit(e);
  }
  __device__ int64_t EachGroup() const { return a_.experts / a_.rule.groups; }

  /// The groups whose highest values have the largest sums, as bits (KeepTopGroups). A lane ranks its own groups.
  __device__ uint64_t KeptGroups() const {
    const auto rank = [&](int64_t group) {
      const int64_t each = EachGroup();
      const bool two = each > 1 && a_.rule.group_best == 2;
      float first = -INFINITY, second = two ? first : 0.0f;
      for (int64_t e = group * each; e < (group + 1) * each; ++e) {
        const float value = Value(e);
        if (two && (value > second || value > first)) second = value > first ? first : value;
        if (value > first) first = value;
      }
      return first + second;
    };
    uint64_t kept = 0, last = UINT64_MAX;
    for (int64_t i = 0; i < a_.rule.top_groups; ++i) {
      last = FirstOf(a_.rule.groups, last, rank);
      kept |= uint64_t{1} << ExpertOf(last);
    }
    return kept;
  }

  const RouteArgs& a_;
  const Scores<T>& scores_;
  uint64_t kept_ = UINT64_MAX;
};

template <typename T>
__global__ void RouteKernel(RouteArgs a) {
  ForWarpRows(a.tokens, [&](int64_t t) {
    const Scores<T> scores(a.rule, a.logits.As<T>() + t * a.experts, a.experts);
    const Choice<T> choice(a, scores);
    float* weights = a.weights + t * a.per_token;
    int32_t* chosen = a.chosen + t * a.per_token;
    float sum = scores.MinSum();
    uint64_t last = UINT64_MAX;
    for (int64_t i = 0; i < a.per_token; ++i) {
      const bool by_position = a.positions != nullptr;
      if (!by_position) last = choice.After(last);
      const int32_t expert =
          by_position ? BalancedExpert(a.positions[t % a.length], i, a.experts, a.per_token) : ExpertOf(last);
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
    const float norm = normalize ? scores.MinSum() + SumOverWarp(a.per_token, score) : 1.0f;
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

/// A block per expert. Counts are whole numbers, so their order does not matter.
__global__ void ExpertLoadKernel(ExpertLoadArgs a) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  int32_t count = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) count += a.chosen[i] == expert ? 1 : 0;
  count = BlockSum(count);
  if (threadIdx.x == 0) a.load[expert] = static_cast<float>(count) + (a.accumulate ? a.load[expert] : 0.0f);
}

/// One block.
__global__ void ConcatenateKernel(ConcatenateArgs::Input input, float* y) {
  for (int64_t i = threadIdx.x; i < input.n; i += blockDim.x) y[i] = input.x[i];
}

/// One block.
__global__ void BiasUpdateKernel(BiasUpdateArgs a) {
  if (*a.apply == 0) return;
  double part = 0;
  for (int64_t e = threadIdx.x; e < a.experts; e += blockDim.x) part += static_cast<double>(a.load[e]);
  __shared__ float mean;
  const double sum = BlockSum(part);
  if (threadIdx.x == 0) mean = static_cast<float>(sum / static_cast<double>(a.experts));
  __syncthreads();
  const auto rate = static_cast<float>(a.rate);
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
    const float load = a.load[a.first + i];
    a.bias[i] += load < mean ? rate : load > mean ? -rate : 0.0f;
  }
}

}  // namespace

void ExpertLoad(const ExpertLoadArgs& a, const LaunchContext& context) {
  if (a.experts == 0) return;
  Launch(ExpertLoadKernel, dim3(static_cast<unsigned>(a.experts)), dim3(kThreads), 0, context.stream, a);
}

void Concatenate(const ConcatenateArgs& a, const LaunchContext& context) {
  float* y = a.y;
  for (const ConcatenateArgs::Input& input : a.inputs) {
    if (input.n > 0) Launch(ConcatenateKernel, dim3(1), dim3(kThreads), 0, context.stream, input, y);
    y += input.n;
  }
}

void BiasUpdate(const BiasUpdateArgs& a, const LaunchContext& context) {
  Launch(BiasUpdateKernel, dim3(1), dim3(kThreads), 0, context.stream, a);
}

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
