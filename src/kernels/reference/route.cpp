// Choice and weights of experts.
#include <vector>

#include "kernels/reference/runtime/access.hpp"
#include "kernels/router.hpp"

namespace espalier::reference {
namespace {

/// Scores of the experts of token t.
std::vector<double> ScoresOf(const Array& logits, const RouterRule& rule, int64_t t, int64_t experts) {
  std::vector<double> scores(static_cast<size_t>(experts));
  double max = -HUGE_VAL, sum = 0;
  for (int64_t e = 0; e < experts; ++e) max = std::max(max, Get(logits, t * experts + e));
  for (int64_t e = 0; e < experts; ++e) {
    const double x = Get(logits, t * experts + e);
    scores[static_cast<size_t>(e)] = rule.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - max);
    sum += scores[static_cast<size_t>(e)];
  }
  for (double& score : scores)
    if (!rule.sigmoid) score /= sum;
  return scores;
}

/// The divisor of the chosen scores.
double NormOf(const std::vector<double>& scores, const RouterRule& rule, const int32_t* chosen, int64_t per_token) {
  if (!rule.normalize) return 1;
  double sum = rule.sigmoid ? kMinScoreSum : 0;
  for (int64_t i = 0; i < per_token; ++i) sum += scores[static_cast<size_t>(chosen[i])];
  return sum;
}

}  // namespace

// Without a bias and groups the choice is by logits, as scores rise with them.
void Route(const RouteArgs& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    int32_t* chosen = a.chosen + t * a.per_token;
    const std::vector<double> scores = ScoresOf(a.logits, a.rule, t, a.experts);
    std::vector<float> values;
    for (int64_t e = 0; e < a.experts; ++e)
      values.push_back(static_cast<float>(a.bias != nullptr   ? scores[static_cast<size_t>(e)] + a.bias[e]
                                          : a.rule.groups > 1 ? scores[static_cast<size_t>(e)]
                                                              : Get(a.logits, t * a.experts + e)));
    if (a.rule.groups > 1) KeepTopGroups(values.data(), a.experts, a.rule.groups, a.rule.top_groups, a.rule.group_best);
    ChooseExperts([&](int64_t e) { return values[static_cast<size_t>(e)]; }, a.experts, a.per_token, chosen);
    for (int64_t i = 0; i < a.per_token && a.positions != nullptr; ++i)
      chosen[i] = BalancedExpert(a.positions[t % a.length], i, a.experts, a.per_token);
    const double norm = NormOf(scores, a.rule, chosen, a.per_token);
    for (int64_t i = 0; i < a.per_token; ++i)
      Set(a.weights, t * a.per_token + i, a.rule.scale * scores[static_cast<size_t>(chosen[i])] / norm);
  }
}

void ExpertLoad(const ExpertLoadArgs& a) {
  for (int64_t e = 0; e < a.experts; ++e)
    Put(a.load, e, static_cast<double>(std::count(a.chosen, a.chosen + a.n, e)), a.accumulate);
}

void Concatenate(const ConcatenateArgs& a) {
  int64_t at = 0;
  for (const ConcatenateArgs::Input& input : a.inputs)
    for (int64_t i = 0; i < input.n; ++i) a.y[at++] = input.x[i];
}

void BiasUpdate(const BiasUpdateArgs& a) {
  if (*a.apply == 0) return;
  double mean = 0;
  for (int64_t e = 0; e < a.experts; ++e) mean += a.load[e];
  mean /= static_cast<double>(a.experts);
  for (int64_t i = 0; i < a.n; ++i) {
    const double load = a.load[a.first + i];
    Set(a.bias, i, a.bias[i] + (load < mean ? a.rate : load > mean ? -a.rate : 0));
  }
}

// With g the adjoints of the scores: the weights w = scale s / n of the chosen, where n is their sum or 1, have
// g_i = (scale dw_i - sum_j dw_j w_j) / n, the sum only if n is one. Then softmax: s_i (g_i - sum_j g_j s_j); sigmoid:
// g_i s_i (1 - s_i).
void RouteGrad(const RouteGradArgs& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int32_t* chosen = a.chosen + t * a.per_token;
    const float* dw = a.dweights + t * a.per_token;
    const std::vector<double> scores = ScoresOf(a.logits, a.rule, t, a.experts);
    const double norm = NormOf(scores, a.rule, chosen, a.per_token);
    double common = 0;
    for (int64_t i = 0; i < a.per_token && a.rule.normalize; ++i)
      common += dw[i] * a.rule.scale * scores[static_cast<size_t>(chosen[i])] / norm;
    std::vector<double> adjoints(scores.size());
    double sum = 0;
    for (int64_t i = 0; i < a.per_token; ++i) {
      const auto e = static_cast<size_t>(chosen[i]);
      adjoints[e] = (a.rule.scale * dw[i] - common) / norm;
      sum += adjoints[e] * scores[e];
    }
    for (size_t e = 0; e < scores.size(); ++e) {
      const double s = scores[e];
      Set(a.dlogits, t * a.experts + static_cast<int64_t>(e),
          a.rule.sigmoid ? adjoints[e] * s * (1 - s) : s * (adjoints[e] - sum));
    }
  }
}

}  // namespace espalier::reference
