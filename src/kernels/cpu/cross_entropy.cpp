// Softmax cross-entropy: in the steps that a sharded vocabulary needs, and in one step. Rows of the vocabulary are
// long: each is read once from memory. If the maximum of a row is not given, the second read finds it in the cache.
#include <cstring>
#include <limits>

#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/scratch.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
float LargestOf(const T* x, int64_t width) {
  Floats largest[4] = {Broadcast(-kInfinity), Broadcast(-kInfinity), Broadcast(-kInfinity), Broadcast(-kInfinity)};
  int64_t c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) largest[i] = Max(Load(x + c + i * kLanes), largest[i]);
  }
  ForLanes(c, width, [&](int64_t i, auto lanes) {
    const Floats v = Load(x + i, lanes);
    largest[0] = Max(kLaneIndex < static_cast<int32_t>(lanes) ? v : Broadcast(-kInfinity), largest[0]);
  });
  return MaxOf(Max(Max(largest[0], largest[1]), Max(largest[2], largest[3])));
}

/// Calls put(c, exp(x[c] - max), lanes) for all columns, and returns the sum of these numbers: blocks of the row are
/// summed in fp32, the blocks in fp64.
template <typename T, typename Put>
float SumOfExp(const T* x, float max, int64_t width, Put put) {
  constexpr int64_t kBlock = 64 * kLanes;
  Doubles sum{};
  for (int64_t first = 0; first < width; first += kBlock) {
    Floats block{};
    ForLanes(first, std::min(width, first + kBlock), [&](int64_t c, auto lanes) {
      const Floats e = Exp(Load(x + c, lanes) - max);
      put(c, e, lanes);
      block += KeepFirst(e, lanes);
    });
    sum = AddWide(sum, block);
  }
  return static_cast<float>(Sum(sum));
}

template <typename T>
float TargetLogit(const T* x, int64_t target, int64_t width) {
  return target >= 0 && target < width ? static_cast<float>(Load(x + target, 1)[0]) : 0.0f;
}

/// The gradient at the target, if it is in this shard.
template <typename T>
void PutTarget(T* dx, int64_t target, int64_t width, float logit, float max, float factor, float weight) {
  if (target < 0 || target >= width) return;
  Store(dx + target, Exp(Broadcast(logit) - max) * factor - weight, 1);
}

template <typename T>
void ClearRow(T* dx, int64_t width) {
  std::memset(static_cast<void*>(dx), 0, static_cast<size_t>(width) * sizeof(T));
}

template <typename T>
void GradRow(const CrossEntropyGradArgs& a, int64_t r) {
  const int64_t width = a.logits.width;
  const T* x = a.logits.x.As<T>() + r * width;
  T* dx = a.dlogits.As<T>() + r * width;
  if (a.targets[r] < 0) return ClearRow(dx, width);
  const int64_t target = a.targets[r] - a.logits.first;
  const float max = a.max[r], factor = SoftmaxFactorOf(max, a.sum[r], a.z_loss, a.weight);
  const float at_target = TargetLogit(x, target, width);  // dlogits may be the logits
  ForLanes(0, width, [&](int64_t c, auto lanes) { Store(dx + c, Exp(Load(x + c, lanes) - max) * factor, lanes); });
  PutTarget(dx, target, width, at_target, max, factor, a.weight);
}

/// Where the exponentials of a row of dlogits are kept until their sum is known: fp32 in place, bf16 in scratch memory.
float* PlaceOfExp(float* dx, int64_t) { return dx; }
float* PlaceOfExp(Bf16*, int64_t width) { return ScratchOf<float>(width); }

/// A row is read once from memory, and each exponential is computed once.
template <typename T>
void LossRow(const CrossEntropyArgs& a, int64_t r) {
  const int64_t width = a.logits.width, target = a.targets[r] - a.logits.first;
  const T* x = a.logits.x.As<T>() + r * width;
  T* dx = a.dlogits.As<T>() + r * width;
  float* exps = PlaceOfExp(dx, width);
  const float max = a.max[r] = LargestOf(x, width), logit = a.target[r] = TargetLogit(x, target, width);
  const float sum = a.sum[r] =
      SumOfExp(x, max, width, [&](int64_t c, Floats e, auto lanes) { Store(exps + c, e, lanes); });
  if (a.targets[r] < 0) return ClearRow(dx, width);
  const float factor = SoftmaxFactorOf(max, sum, a.z_loss, a.weight);
  ForLanes(0, width, [&](int64_t c, auto lanes) { Store(dx + c, Load(exps + c, lanes) * factor, lanes); });
  PutTarget(dx, target, width, logit, max, factor, a.weight);
}

}  // namespace

void LogitsMax(const LogitsMaxArgs& a) {
  const auto& [x, rows, width, first] = a.logits;
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForRows(rows, width, [&](int64_t r) { a.max[r] = LargestOf(x.As<T>() + r * width, width); });
  });
}

void LogitsSum(const LogitsSumArgs& a) {
  const auto& [x, rows, width, first] = a.logits;
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForRows(rows, width, [&](int64_t r) {
      const T* row = x.As<T>() + r * width;
      const float max = a.max == nullptr ? a.found_max[r] = LargestOf(row, width) : a.max[r];
      a.sum[r] = SumOfExp(row, max, width, [](int64_t, Floats, auto) {});
      a.target[r] = TargetLogit(row, a.targets[r] - first, width);
    });
  });
}

void TokenLoss(const TokenLossArgs& a) {
  double loss = 0, count = 0, z = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    if (a.targets[r] < 0) continue;
    loss += TokenLossOf(a.max[r], a.sum[r], a.target[r]);
    count += 1;
    const double log_z = LogZOf(a.max[r], a.sum[r]);
    z += a.z_loss * log_z * log_z;
  }
  const auto put = [&](float* y, double x) {
    *y = static_cast<float>((a.accumulate ? static_cast<double>(*y) : 0.0) + x);
  };
  put(a.loss, loss);
  put(a.count, count);
  if (a.z != nullptr) put(a.z, z);
}

void CrossEntropyGrad(const CrossEntropyGradArgs& a) {
  ForElementType(a.logits.x.dtype,
                 [&]<typename T>(T) { ForRows(a.logits.rows, a.logits.width, [&](int64_t r) { GradRow<T>(a, r); }); });
}

void CrossEntropy(const CrossEntropyArgs& a) {
  ForElementType(a.logits.x.dtype,
                 [&]<typename T>(T) { ForRows(a.logits.rows, a.logits.width, [&](int64_t r) { LossRow<T>(a, r); }); });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
