// Losses of routers.
#include <vector>

#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {
namespace {

/// A token's scores; with sigmoid each is divided by their sum.
struct TokenScores {
  std::vector<double> scores, softmax;
  double sigmoid_sum = 0, log_sum = 0;
};

TokenScores ScoresOfToken(const Array& logits, int64_t token, int64_t experts, bool sigmoid) {
  TokenScores s;
  double max = -HUGE_VAL, sum = 0;
  for (int64_t e = 0; e < experts; ++e) max = std::max(max, Get(logits, token * experts + e));
  for (int64_t e = 0; e < experts; ++e) {
    const double x = Get(logits, token * experts + e);
    s.softmax.push_back(std::exp(x - max));
    s.scores.push_back(1 / (1 + std::exp(-x)));
    sum += s.softmax.back();
    s.sigmoid_sum += s.scores.back();
  }
  for (double& p : s.softmax) p /= sum;
  for (double& p : s.scores) p /= s.sigmoid_sum;
  if (!sigmoid) s.scores = s.softmax;
  s.log_sum = max + std::log(sum);
  return s;
}

}  // namespace

void Balance(const BalanceArgs& a) {
  for (int64_t b = 0; b < a.batch; ++b) {
    std::vector<double> sums(static_cast<size_t>(a.experts)), counts(sums.size());
    double squares = 0;
    for (int64_t t = b * a.tokens; t < (b + 1) * a.tokens; ++t) {
      const TokenScores s = ScoresOfToken(a.logits, t, a.experts, a.sigmoid);
      for (size_t e = 0; e < sums.size(); ++e) sums[e] += s.scores[e];
      for (int64_t i = 0; i < a.per_token; ++i) counts[static_cast<size_t>(a.chosen[t * a.per_token + i])] += 1;
      squares += s.log_sum * s.log_sum;
    }
    for (int64_t e = 0; e < a.experts; ++e) {
      Set(a.sums, b * a.experts + e, sums[static_cast<size_t>(e)]);
      Set(a.counts, b * a.experts + e, counts[static_cast<size_t>(e)]);
    }
    Set(a.squares, b, squares);
  }
}

// With q the adjoints of a token's scores p: softmax p (q - sum of q p), and for sigmoid, where p = s / sum of s,
// p (1 - s) (q - sum of q p).
void BalanceGrad(const BalanceGradArgs& a) {
  for (int64_t t = 0; t < a.batch * a.tokens; ++t) {
    const TokenScores s = ScoresOfToken(a.logits, t, a.experts, a.sigmoid);
    const float* counts = a.counts + t / a.tokens * a.experts;
    double mean = 0;
    for (int64_t e = 0; e < a.experts; ++e) mean += a.balance * counts[e] * s.scores[static_cast<size_t>(e)];
    for (int64_t e = 0; e < a.experts; ++e) {
      const double p = s.scores[static_cast<size_t>(e)];
      const double slope = a.sigmoid ? p * (1 - p * s.sigmoid_sum) : p;
      Set(a.dlogits, t * a.experts + e,
          slope * (a.balance * counts[e] - mean) + 2 * a.z_loss * s.log_sum * s.softmax[static_cast<size_t>(e)]);
    }
  }
}

// - sum of p log(p); a sigmoid that is 0 in fp64 adds nothing.
void RouterEntropy(const RouterEntropyArgs& a) {
  double sum = 0;
  for (int64_t t = 0; t < a.tokens; ++t)
    for (const double p : ScoresOfToken(a.logits, t, a.experts, a.sigmoid).scores)
      if (p > 0) sum -= p * std::log(p);
  Put(a.entropy, 0, sum, a.accumulate);
}

void RouterLoss(const RouterLossArgs& a) {
  double balance = 0, squares = 0;
  for (int64_t i = 0; i < a.n; ++i) balance += static_cast<double>(a.sums[i]) * a.counts[i];
  for (int64_t b = 0; b < a.batch; ++b) squares += a.squares[b];
  Put(a.balance_loss, 0, a.balance * balance, a.accumulate);
  Put(a.z, 0, a.z_loss * squares, a.accumulate);
}

}  // namespace espalier::reference
