// Losses of routers. The formulas are in kernels/reference/balance.cpp. Sums over tokens are sums of columns, in a
// fixed order; before them a warp per token finds the denominators of its scores.
#include "espalier/device_memory/expert_rows.hpp"
#include "kernels/cuda/runtime/column_sums.cuh"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/warp_rows.cuh"

namespace espalier::cuda {
namespace {

/// With all lanes of a warp.
template <typename T>
__device__ RouterDenominators DenominatorsOf(const T* logits, int64_t experts, bool sigmoid) {
  const auto logit = [&](int64_t e) { return Widen(logits[e]); };
  const float max = LargestOverWarp(experts, logit);
  const float sum = SumOverWarp(experts, [&](int64_t e) { return expf(logit(e) - max); });
  const float sigmoids = sigmoid ? SumOverWarp(experts, [&](int64_t e) { return SigmoidOf(logit(e)); }) : 1.0f;
  return {max, max + logf(sum), 1.0f / sum, 1.0f / sigmoids};
}

__device__ float SoftmaxOf(float logit, const RouterDenominators& d) { return expf(logit - d.max) * d.softmax; }
__device__ float ScoreOf(float logit, const RouterDenominators& d, bool sigmoid) {
  return sigmoid ? SigmoidOf(logit) * d.sigmoid : SoftmaxOf(logit, d);
}

template <typename T>
__global__ void FindDenominators(BalanceArgs a, RouterDenominators* denominators) {
  ForWarpRows(a.batch * a.tokens, [&](int64_t t) {
    const RouterDenominators d = DenominatorsOf(a.logits.As<T>() + t * a.experts, a.experts, a.sigmoid);
    if (LaneOfWarp() == 0) denominators[t] = d;
  });
}

/// One block per sequence.
__global__ void SumSquaresOfLogs(const RouterDenominators* denominators, int64_t tokens, float* squares) {
  const RouterDenominators* sequence = denominators + blockIdx.x * tokens;
  float sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += blockDim.x) sum += sequence[t].log_sum * sequence[t].log_sum;
  sum = BlockSum(sum);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/// A token's scores, and 1 for each expert that was chosen.
template <typename T>
struct ScoreTerm {
  const T* logits;
  const int32_t* chosen;
  const RouterDenominators* denominators;
  int64_t experts, per_token;
  bool sigmoid;

  template <int N>
  __device__ void operator()(int64_t t, int64_t e, Floats<N>* sums, Lanes<N> lanes) const {
    const auto logit = Load(logits + t * experts + e, lanes);
    const RouterDenominators d = denominators[t];
    sums[0] = Each(lanes, [&](int k) { return sums[0][k] + ScoreOf(logit[k], d, sigmoid); });
    for (int64_t i = 0; i < per_token; ++i) {
      const int64_t expert = chosen[t * per_token + i];
      sums[1] = Each(lanes, [&](int k) { return sums[1][k] + (expert == e + k ? 1.0f : 0.0f); });
    }
  }
};

template <typename T>
__global__ void BalanceGradKernel(BalanceGradArgs a) {
  ForWarpRows(a.batch * a.tokens, [&](int64_t t) {
    const T* logits = a.logits.As<T>() + t * a.experts;
    const float* counts = a.counts + t / a.tokens * a.experts;
    T* dlogits = a.dlogits.As<T>() + t * a.experts;
    const RouterDenominators d = DenominatorsOf(logits, a.experts, a.sigmoid);
    const float balance = static_cast<float>(a.balance), z = static_cast<float>(2 * a.z_loss) * d.log_sum;
    const float mean = SumOverWarp(
        a.experts, [&](int64_t e) { return balance * counts[e] * ScoreOf(Widen(logits[e]), d, a.sigmoid); });
    ForLanesOfWarp(a.experts, [&](int64_t e) {
      const float x = Widen(logits[e]), slope = ScoreOf(x, d, a.sigmoid) * (a.sigmoid ? SigmoidOf(-x) : 1.0f);
      dlogits[e] = Narrow<T>(slope * (balance * counts[e] - mean) + z * SoftmaxOf(x, d));
    });
  });
}

/// One block.
__global__ void RouterLossKernel(RouterLossArgs a) {
  double balance = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
    balance += static_cast<double>(a.sums[i]) * static_cast<double>(a.counts[i]);
  for (int64_t b = threadIdx.x; b < a.batch; b += blockDim.x) squares += static_cast<double>(a.squares[b]);
  balance = a.balance * BlockSum(balance);
  squares = a.z_loss * BlockSum(squares);
  if (threadIdx.x != 0) return;
  *a.balance_loss = static_cast<float>((a.accumulate ? static_cast<double>(*a.balance_loss) : 0.0) + balance);
  *a.z = static_cast<float>((a.accumulate ? static_cast<double>(*a.z) : 0.0) + squares);
}

/// A block per part of the tokens, a warp per token. -log(p) = log(sum of the scores) - log(score).
template <typename T>
__global__ void EntropyPartials(RouterEntropyArgs a, double* partials) {
  const int64_t part = blockIdx.x, parts = gridDim.x;
  double sum = 0;
  for (int64_t t = a.tokens * part / parts + threadIdx.x / kWarp; t < a.tokens * (part + 1) / parts;
       t += kWarpsOfBlock) {
    const T* logits = a.logits.As<T>() + t * a.experts;
    const RouterDenominators d = DenominatorsOf(logits, a.experts, a.sigmoid);
    const float log_sum = a.sigmoid ? -logf(d.sigmoid) : d.log_sum;
    const float entropy = SumOverWarp(a.experts, [&](int64_t e) {
      const float x = Widen(logits[e]);
      return ScoreOf(x, d, a.sigmoid) * (log_sum - (a.sigmoid ? LogSigmoidOf(x) : x));
    });
    if (LaneOfWarp() == 0) sum += static_cast<double>(entropy);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partials[part] = sum;
}

/// One block.
__global__ void AddEntropies(RouterEntropyArgs a, const double* partials, int64_t parts) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += partials[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *a.entropy = static_cast<float>((a.accumulate ? static_cast<double>(*a.entropy) : 0.0) + sum);
}

}  // namespace

void Balance(const BalanceArgs& a, const LaunchContext& context) {
  if (a.batch == 0) return;
  const int64_t bytes = BalanceBytes(a.batch, a.tokens, a.experts);
  auto* sums = context.Workspace<float>(bytes);
  auto* denominators = reinterpret_cast<RouterDenominators*>(reinterpret_cast<char*>(sums) + bytes -
                                                             a.batch * a.tokens * int64_t{sizeof(RouterDenominators)});
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    if (a.tokens > 0)
      Launch(FindDenominators<T>, WarpRowBlocks(a.batch * a.tokens), dim3(kThreads), 0, context.stream, a,
             denominators);
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t first = b * a.tokens;
      const ScoreTerm<T> term{a.logits.As<T>() + first * a.experts,
                              a.chosen + first * a.per_token,
                              denominators + first,
                              a.experts,
                              a.per_token,
                              a.sigmoid};
      LaunchColumnSums<2, 1>(term, a.tokens, a.experts,
                             {{a.sums + b * a.experts, a.counts + b * a.experts}, false, sums}, context.stream);
    }
  });
  Launch(SumSquaresOfLogs, dim3(static_cast<unsigned>(a.batch)), dim3(kThreads), 0, context.stream, denominators,
         a.tokens, a.squares);
}

void BalanceGrad(const BalanceGradArgs& a, const LaunchContext& context) {
  if (a.batch * a.tokens == 0) return;
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    Launch(BalanceGradKernel<T>, WarpRowBlocks(a.batch * a.tokens), dim3(kThreads), 0, context.stream, a);
  });
}

void RouterEntropy(const RouterEntropyArgs& a, const LaunchContext& context) {
  const int64_t parts = EntropyParts(a.tokens);
  auto* partials = context.Workspace<double>(EntropyBytes(a.tokens));
  ForElementType(a.logits.dtype, [&]<typename T>(T) {
    Launch(EntropyPartials<T>, dim3(static_cast<unsigned>(parts)), dim3(kThreads), 0, context.stream, a, partials);
  });
  Launch(AddEntropies, dim3(1), dim3(kThreads), 0, context.stream, a, partials, parts);
}

void RouterLoss(const RouterLossArgs& a, const LaunchContext& context) {
  Launch(RouterLossKernel, dim3(1), dim3(kThreads), 0, context.stream, a);
}

}  // namespace espalier::cuda
