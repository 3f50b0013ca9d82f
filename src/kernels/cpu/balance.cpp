// Losses of routers. Formulas are in kernels/reference/balance.cpp. Sums over tokens are made for blocks of tokens, of
// one size whatever the number of threads, and the blocks are added in order.
#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

constexpr int64_t kBlock = 64;  // tokens

/// Softmax of a token's logits, and with sigmoid also these scores, both in fp32.
struct TokenScores {
  float *softmax, *scores;  ///< the same without sigmoid
  float sigmoid_sum = 0, log_sum = 0;
};

/// `memory` has room for twice the experts.
template <typename T>
TokenScores ScoresOfToken(const T* logits, int64_t experts, bool sigmoid, float* memory) {
  TokenScores s{memory, sigmoid ? memory + experts : memory};
  float max = -HUGE_VALF;
  for (int64_t e = 0; e < experts; ++e) max = std::max(max, static_cast<float>(Load(logits + e, 1)[0]));
  Sums sums, sigmoids;
  ForSums(0, experts, [&](int64_t part, int64_t e, auto lanes) {
    const Floats x = Load(logits + e, lanes), exponential = Exp(x - max);
    Store(s.softmax + e, exponential, lanes);
    sums.part[part] += KeepFirst(exponential, lanes);
    if (!sigmoid) return;
    const Floats score = 1.0f / (1.0f + Exp(-x));
    Store(s.scores + e, score, lanes);
    sigmoids.part[part] += KeepFirst(score, lanes);
  });
  const float sum = Sum(sums);
  s.sigmoid_sum = sigmoid ? Sum(sigmoids) : 1;
  s.log_sum = max + std::log(sum);
  ForLanes(0, experts, [&](int64_t e, auto lanes) {
    Store(s.softmax + e, Load(s.softmax + e, lanes) * (1.0f / sum), lanes);
    if (sigmoid) Store(s.scores + e, Load(s.scores + e, lanes) * (1.0f / s.sigmoid_sum), lanes);
  });
  return s;
}

/// Sums of the tokens [begin, end): of the scores of each expert, then of the squares.
template <typename T>
void SumBlock(const BalanceArgs& a, int64_t begin, int64_t end, float* sums) {
  std::fill_n(sums, a.experts + 1, 0.0f);
  float* memory = ScratchOf<float>(2 * a.experts);
  for (int64_t t = begin; t < end; ++t) {
    const TokenScores s = ScoresOfToken(a.logits.As<T>() + t * a.experts, a.experts, a.sigmoid, memory);
    ForLanes(0, a.experts,
             [&](int64_t e, auto lanes) { Store(sums + e, Load(sums + e, lanes) + Load(s.scores + e, lanes), lanes); });
    sums[a.experts] += s.log_sum * s.log_sum;
  }
}

template <typename T>
void GradRow(const BalanceGradArgs& a, int64_t t) {
  const float* counts = a.counts + t / a.tokens * a.experts;
  const TokenScores s =
      ScoresOfToken(a.logits.As<T>() + t * a.experts, a.experts, a.sigmoid, ScratchOf<float>(2 * a.experts));
  const auto balance = static_cast<float>(a.balance), z = static_cast<float>(2 * a.z_loss) * s.log_sum;
  Sums sums;
  ForSums(0, a.experts, [&](int64_t part, int64_t e, auto lanes) {
    sums.part[part] += KeepFirst(balance * Load(counts + e, lanes) * Load(s.scores + e, lanes), lanes);
  });
  const float mean = Sum(sums);
  ForLanes(0, a.experts, [&](int64_t e, auto lanes) {
    const Floats p = Load(s.scores + e, lanes), slope = a.sigmoid ? p * (1.0f - p * s.sigmoid_sum) : p;
    Store(a.dlogits.As<T>() + t * a.experts + e,
          slope * (balance * Load(counts + e, lanes) - mean) + z * Load(s.softmax + e, lanes), lanes);
  });
}

/// Every term of the sum is positive, so nothing cancels: -log(p) = log(sum of the scores) - log(score).
template <typename T>
double EntropyOfToken(const T* logits, int64_t experts, bool sigmoid) {
  const TokenScores s = ScoresOfToken(logits, experts, sigmoid, ScratchOf<float>(2 * experts));
  if (!sigmoid) {
    Sums sums;
    ForSums(0, experts, [&](int64_t part, int64_t e, auto lanes) {
      const Floats p = Load(s.scores + e, lanes), x = Load(logits + e, lanes);
      sums.part[part] += KeepFirst(p * (s.log_sum - x), lanes);
    });
    return static_cast<double>(Sum(sums));
  }
  const float log_sum = std::log(s.sigmoid_sum);
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e)
    sum += s.scores[e] * (log_sum - LogSigmoidOf(static_cast<float>(Load(logits + e, 1)[0])));
  return static_cast<double>(sum);
}

}  // namespace

void Balance(const BalanceArgs& a) {
  const int64_t blocks = (a.tokens + kBlock - 1) / kBlock, each = a.experts + 1;
  std::vector<float> sums(static_cast<size_t>(blocks * each));
  for (int64_t b = 0; b < a.batch; ++b) {
    ForElementType(a.logits.dtype, [&]<typename T>(T) {
      ForRows(blocks, kBlock * a.experts, [&](int64_t i) {
        const int64_t begin = i * kBlock, end = std::min(a.tokens, begin + kBlock);
        SumBlock<T>(a, b * a.tokens + begin, b * a.tokens + end, sums.data() + i * each);
      });
    });
    float *total = a.sums + b * a.experts, *counts = a.counts + b * a.experts;
    std::fill_n(total, a.experts, 0.0f);
    std::fill_n(counts, a.experts, 0.0f);
    a.squares[b] = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      const float* block = sums.data() + i * each;
      for (int64_t e = 0; e < a.experts; ++e) total[e] += block[e];
      a.squares[b] += block[a.experts];
    }
    const int32_t* chosen = a.chosen + b * a.tokens * a.per_token;
    for (int64_t i = 0; i < a.tokens * a.per_token; ++i) counts[chosen[i]] += 1;
  }
}

void BalanceGrad(const BalanceGradArgs& a) {
  ForElementType(a.logits.dtype,
                 [&]<typename T>(T) { ForRows(a.batch * a.tokens, a.experts, [&](int64_t t) { GradRow<T>(a, t); }); });
}

void RouterEntropy(const RouterEntropyArgs& a) {
  std::vector<double> sums(static_cast<size_t>((a.tokens + kBlock - 1) / kBlock));
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    ForRows(std::ssize(sums), kBlock * a.experts, [&](int64_t i) {
      for (int64_t t = i * kBlock; t < std::min(a.tokens, (i + 1) * kBlock); ++t)
        sums[static_cast<size_t>(i)] += EntropyOfToken(a.logits.As<T>() + t * a.experts, a.experts, a.sigmoid);
    });
  });
  double sum = a.accumulate ? static_cast<double>(*a.entropy) : 0;
  for (const double block : sums) sum += block;
  *a.entropy = static_cast<float>(sum);
}

void RouterLoss(const RouterLossArgs& a) {
  double balance = 0, squares = 0;
  for (int64_t i = 0; i < a.n; ++i) balance += static_cast<double>(a.sums[i]) * static_cast<double>(a.counts[i]);
  for (int64_t b = 0; b < a.batch; ++b) squares += static_cast<double>(a.squares[b]);
  const auto put = [&](float* loss, double value) {
    *loss = static_cast<float>(value) + (a.accumulate ? *loss : 0.0f);
  };
  put(a.balance_loss, a.balance * balance);
  put(a.z, a.z_loss * squares);
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
