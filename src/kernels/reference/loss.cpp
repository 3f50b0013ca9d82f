// Softmax cross-entropy in the steps that a sharded vocabulary needs.
#include <limits>

#include "access.hpp"

namespace espalier::reference {

// logits T[b,s,v] -> f32[b,s]; -inf where v is empty
void LogitsMax(const KernelCall& call) {
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  for (int64_t r = 0; r < rows; ++r) {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < width; ++c) largest = std::max(largest, Get(call.inputs[0], r * width + c));
    Set(call.outputs[0], r, largest);
  }
}

// logits, max f32[b,s], targets i32[b,s] -> sum of exp(x - max) f32[b,s], target's logit f32[b,s] (0 if it is not here)
void LogitsSum(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x), first = StartOf(x, x.shape.size() - 1);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += std::exp(Get(x, r * width + c) - Get(call.inputs[1], r));
    const int64_t target = call.inputs[2].As<int32_t>()[r] - first;
    Set(call.outputs[0], r, sum);
    Set(call.outputs[1], r, target >= 0 && target < width ? Get(x, r * width + target) : 0.0);
  }
}

// max, sum, target f32[b,s], targets i32[b,s] -> sum of losses f32[], number of tokens counted f32[]
void TokenLoss(const KernelCall& call) {
  const int64_t rows = Volume(call.inputs[0].shape);
  double loss = 0, count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (call.inputs[3].As<int32_t>()[r] < 0) continue;
    loss += std::log(Get(call.inputs[1], r)) + Get(call.inputs[0], r) - Get(call.inputs[2], r);
    count += 1;
  }
  Put(call, 0, 0, loss);
  Put(call, 1, 0, count);
}

// logits, max, sum, targets -> dlogits T[b,s,v] = exp(x - max) / sum - [v = target]; rows without a target are 0
void CrossEntropyGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x), first = StartOf(x, x.shape.size() - 1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = call.inputs[3].As<int32_t>()[r];
    for (int64_t c = 0; c < width; ++c) {
      const double p = std::exp(Get(x, r * width + c) - Get(call.inputs[1], r)) / Get(call.inputs[2], r);
      Set(call.outputs[0], r * width + c, target < 0 ? 0.0 : p - (first + c == target ? 1 : 0));
    }
  }
}

}  // namespace espalier::reference
