// Softmax cross-entropy in the steps that a sharded vocabulary needs. Rows of the vocabulary are long: each is read
// once.
#include <limits>

#include "../arithmetic.hpp"
#include "kernels.hpp"

namespace espalier::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
float LargestOf(const T* x, int64_t width) {
  F16 largest[4] = {Broadcast(-kInfinity), Broadcast(-kInfinity), Broadcast(-kInfinity), Broadcast(-kInfinity)};
  int64_t c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) largest[i] = Max(Load(x + c + i * kLanes), largest[i]);
  }
  ForLanes(c, width, [&](int64_t i, auto lanes) {
    const F16 v = Load(x + i, lanes);
    largest[0] = Max(kLaneIndex < static_cast<int32_t>(lanes) ? v : Broadcast(-kInfinity), largest[0]);
  });
  return MaxOf(Max(Max(largest[0], largest[1]), Max(largest[2], largest[3])));
}

/// Blocks of the row are summed in fp32, the blocks in fp64.
template <typename T>
float SumOfExp(const T* x, float largest, int64_t width) {
  constexpr int64_t kBlock = 64 * kLanes;
  D8 sum{};
  for (int64_t first = 0; first < width; first += kBlock) {
    F16 block{};
    ForLanes(first, std::min(width, first + kBlock),
             [&](int64_t c, auto lanes) { block += KeepFirst(Exp(Load(x + c, lanes) - largest), lanes); });
    sum = AddWide(sum, block);
  }
  return static_cast<float>(Sum(sum));
}

template <typename T>
void GradRow(const T* x, float largest, float sum, int64_t target, int64_t width, T* dx) {
  const float inverse = 1.0f / sum;
  const float at_target = target >= 0 && target < width ? static_cast<float>(Load(x + target, 1)[0]) : 0.0f;
  ForLanes(0, width, [&](int64_t c, auto lanes) { Store(dx + c, Exp(Load(x + c, lanes) - largest) * inverse, lanes); });
  if (target < 0 || target >= width) return;
  Store(dx + target, Exp(Broadcast(at_target) - largest) * inverse - 1.0f, 1);
}

template <typename F>
void ForRows(const Tensor& x, F f) {
  ParallelRanges(RowsOf(x), RowGrain(ColumnsOf(x)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

}  // namespace

// logits T[b,s,v] -> f32[b,s]; -inf where v is empty
void LogitsMax(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x);
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForRows(x, [&](int64_t r) { call.outputs[0].As<float>()[r] = LargestOf(x.As<T>() + r * width, width); });
  });
}

// logits, max f32[b,s], targets i32[b,s] -> sum of exp(x - max) f32[b,s], target's logit f32[b,s] (0 if it is not here)
void LogitsSum(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x), first = StartOf(x, x.shape.size() - 1);
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForRows(x, [&](int64_t r) {
      const T* row = x.As<T>() + r * width;
      const int64_t target = call.inputs[2].As<int32_t>()[r] - first;
      call.outputs[0].As<float>()[r] = SumOfExp(row, call.inputs[1].As<float>()[r], width);
      call.outputs[1].As<float>()[r] =
          target >= 0 && target < width ? static_cast<float>(Load(row + target, 1)[0]) : 0.0f;
    });
  });
}

// max, sum, target f32[b,s], targets i32[b,s] -> sum of losses f32[], number of tokens counted f32[]
void TokenLoss(const KernelCall& call) {
  const float *largest = call.inputs[0].As<float>(), *sum = call.inputs[1].As<float>();
  const float* target = call.inputs[2].As<float>();
  double loss = 0, count = 0;
  for (int64_t r = 0; r < Volume(call.inputs[0].shape); ++r) {
    if (call.inputs[3].As<int32_t>()[r] < 0) continue;
    loss += TokenLossOf(largest[r], sum[r], target[r]);
    count += 1;
  }
  const double values[] = {loss, count};
  for (size_t o = 0; o < 2; ++o) {
    float* y = call.outputs[o].As<float>();
    *y = static_cast<float>((call.accumulate ? static_cast<double>(*y) : 0.0) + values[o]);
  }
}

// logits, max, sum, targets -> dlogits T[b,s,v] = exp(x - max) / sum - [v = target]; rows without a target are 0. May
// lie on the logits.
void CrossEntropyGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x), first = StartOf(x, x.shape.size() - 1);
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForRows(x, [&](int64_t r) {
      T* dx = call.outputs[0].As<T>() + r * width;
      const int64_t target = call.inputs[3].As<int32_t>()[r];
      if (target < 0) {
        std::memset(static_cast<void*>(dx), 0, static_cast<size_t>(width) * sizeof(T));
        return;
      }
      GradRow(x.As<T>() + r * width, call.inputs[1].As<float>()[r], call.inputs[2].As<float>()[r], target - first,
              width, dx);
    });
  });
}

}  // namespace espalier::cpu
