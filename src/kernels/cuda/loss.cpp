#include "loss.hpp"

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels.hpp"

namespace espalier::cuda {
namespace {

Logits LogitsOf(const Tensor& x) {
  return {FloatTypeOf(x), x.data, RowsOf(x), ColumnsOf(x), StartOf(x, x.shape.size() - 1)};
}

}  // namespace

// logits T[b,s,v] -> f32[b,s]; -inf where v is empty
void LogitsMax(const KernelCall& call) {
  LaunchLogitsMax(LogitsOf(call.inputs[0]), call.outputs[0].As<float>(), StreamOf(call));
}

// logits, max f32[b,s], targets i32[b,s] -> sum of exp(x - max) f32[b,s], target's logit f32[b,s] (0 if it is not here)
void LogitsSum(const KernelCall& call) {
  LaunchLogitsSum(LogitsOf(call.inputs[0]), call.inputs[1].As<float>(), call.inputs[2].As<int32_t>(),
                  call.outputs[0].As<float>(), call.outputs[1].As<float>(), StreamOf(call));
}

// max, sum, target f32[b,s], targets i32[b,s] -> sum of losses f32[], number of tokens counted f32[]
void TokenLoss(const KernelCall& call) {
  const int64_t rows = Volume(call.inputs[0].shape);
  LaunchTokenLoss(call.inputs[0].As<float>(), call.inputs[1].As<float>(), call.inputs[2].As<float>(),
                  call.inputs[3].As<int32_t>(), rows, call.outputs[0].As<float>(), call.outputs[1].As<float>(),
                  call.accumulate, WorkspaceOf<double>(call, TokenLossBytes(rows)), StreamOf(call));
}

// logits, max, sum, targets -> dlogits T[b,s,v]
void CrossEntropyGrad(const KernelCall& call) {
  LaunchCrossEntropyGrad(LogitsOf(call.inputs[0]), call.inputs[1].As<float>(), call.inputs[2].As<float>(),
                         call.inputs[3].As<int32_t>(), call.outputs[0].data, StreamOf(call));
}

}  // namespace espalier::cuda
