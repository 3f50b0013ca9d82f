// Choice and weights of experts. A row of logits is short: it is widened once, and stays in the first-level cache.
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"
#include "kernels/router.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

template <typename T>
float LargestOf(const T* logits, int64_t experts) {
  float max = -HUGE_VALF;
  for (int64_t e = 0; e < experts; ++e) max = std::max(max, static_cast<float>(Load(logits + e, 1)[0]));
  return max;
}

/// The scores of a row of logits. Softmax needs the largest logit.
template <typename T>
void ScoreRow(const RouterRule& rule, const T* logits, float max, int64_t experts, float* scores) {
  if (rule.sigmoid)
    return ForLanes(0, experts, [&](int64_t e, auto lanes) {
      Store(scores + e, 1.0f / (1.0f + Exp(-Load(logits + e, lanes))), lanes);
    });
  Sums sums;
  ForSums(0, experts, [&](int64_t part, int64_t e, auto lanes) {
    const Floats exponential = Exp(Load(logits + e, lanes) - max);
    Store(scores + e, exponential, lanes);
    sums.part[part] += KeepFirst(exponential, lanes);
  });
  const float factor = 1.0f / Sum(sums);
  ForLanes(0, experts, [&](int64_t e, auto lanes) { Store(scores + e, Load(scores + e, lanes) * factor, lanes); });
}

/// The divisor of the chosen scores.
float NormOf(const RouterRule& rule, const float* scores, const int32_t* chosen, int64_t per_token) {
  if (!rule.normalize) return 1;
  float sum = rule.sigmoid ? kMinScoreSum : 0;
  for (int64_t i = 0; i < per_token; ++i) sum += scores[chosen[i]];
  return sum;
}

/// The numbers by which experts are chosen: without a bias and groups the logits, since scores rise with them.
template <typename T>
void ValueRow(const RouteArgs& a, const T* logits, const float* scores, float* values) {
  ForLanes(0, a.experts, [&](int64_t e, auto lanes) {
    const Floats value = a.bias != nullptr   ? Load(scores + e, lanes) + Load(a.bias + e, lanes)
                         : a.rule.groups > 1 ? Load(scores + e, lanes)
                                             : Load(logits + e, lanes);
    Store(values + e, value, lanes);
  });
  if (a.rule.groups > 1) KeepTopGroups(values, a.experts, a.rule.groups, a.rule.top_groups, a.rule.group_best);
}

template <typename T>
void ForwardRow(const RouteArgs& a, int64_t t) {
  const T* logits = a.logits.As<T>() + t * a.experts;
  float *scores = ScratchOf<float>(2 * a.experts), *values = scores + a.experts;
  ScoreRow(a.rule, logits, LargestOf(logits, a.experts), a.experts, scores);
  ValueRow(a, logits, scores, values);
  int32_t* chosen = a.chosen + t * a.per_token;
  if (a.positions == nullptr) ChooseExperts([&](int64_t e) { return values[e]; }, a.experts, a.per_token, chosen);
  for (int64_t i = 0; i < a.per_token && a.positions != nullptr; ++i)
    chosen[i] = BalancedExpert(a.positions[t % a.length], i, a.experts, a.per_token);
  const float factor = static_cast<float>(a.rule.scale) / NormOf(a.rule, scores, chosen, a.per_token);
  for (int64_t i = 0; i < a.per_token; ++i) a.weights[t * a.per_token + i] = scores[chosen[i]] * factor;
}

// The formulas are in kernels/reference/route.cpp.
template <typename T>
void BackwardRow(const RouteGradArgs& a, int64_t t) {
  const T* logits = a.logits.As<T>() + t * a.experts;
  const int32_t* chosen = a.chosen + t * a.per_token;
  const float* dw = a.dweights + t * a.per_token;
  float *scores = ScratchOf<float>(2 * a.experts), *adjoints = scores + a.experts;
  ScoreRow(a.rule, logits, LargestOf(logits, a.experts), a.experts, scores);
  const float norm = NormOf(a.rule, scores, chosen, a.per_token), scale = static_cast<float>(a.rule.scale) / norm;
  float common = 0, sum = 0;
  for (int64_t i = 0; i < a.per_token && a.rule.normalize; ++i) common += dw[i] * scores[chosen[i]] * scale;
  std::fill_n(adjoints, a.experts, 0.0f);
  for (int64_t i = 0; i < a.per_token; ++i) {
    adjoints[chosen[i]] = scale * dw[i] - common / norm;
    sum += adjoints[chosen[i]] * scores[chosen[i]];
  }
  T* dlogits = a.dlogits.As<T>() + t * a.experts;
  ForLanes(0, a.experts, [&](int64_t e, auto lanes) {
    const Floats s = Load(scores + e, lanes), g = Load(adjoints + e, lanes);
    Store(dlogits + e, a.rule.sigmoid ? g * s * (1.0f - s) : s * (g - sum), lanes);
  });
}

}  // namespace

void Route(const RouteArgs& a) {
  ForElementType(a.logits.dtype,
                 [&]<typename T>(T) { ForRows(a.tokens, a.experts, [&](int64_t t) { ForwardRow<T>(a, t); }); });
}

void ExpertLoad(const ExpertLoadArgs& a) {
  if (!a.accumulate) std::fill_n(a.load, a.experts, 0.0f);
  for (int64_t i = 0; i < a.n; ++i) a.load[a.chosen[i]] += 1;
}

void Concatenate(const ConcatenateArgs& a) {
  float* y = a.y;
  for (const ConcatenateArgs::Input& input : a.inputs) y = std::copy_n(input.x, input.n, y);
}

void BiasUpdate(const BiasUpdateArgs& a) {
  if (*a.apply == 0) return;
  double sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) sum += static_cast<double>(a.load[e]);
  const auto mean = static_cast<float>(sum / static_cast<double>(a.experts)), rate = static_cast<float>(a.rate);
  for (int64_t i = 0; i < a.n; ++i) {
    const float load = a.load[a.first + i];
    a.bias[i] += load < mean ? rate : load > mean ? -rate : 0;
  }
}

void RouteGrad(const RouteGradArgs& a) {
  ForElementType(a.logits.dtype,
                 [&]<typename T>(T) { ForRows(a.tokens, a.experts, [&](int64_t t) { BackwardRow<T>(a, t); }); });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
