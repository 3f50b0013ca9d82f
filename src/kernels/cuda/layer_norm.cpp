#include "layer_norm.hpp"

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// x T[b,s,d], w, bias T[d] -> y T[b,s,d], mean, rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void LayerNorm(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const auto eps = static_cast<float>(call.attributes->Number("eps"));
  LaunchLayerNorm(FloatTypeOf(x), x.data, call.inputs[1].data, call.inputs[2].data, DataOrNull<void>(call.inputs, 3),
                  eps, RowsOf(x), ColumnsOf(x), call.outputs[0].data, call.outputs[1].As<float>(),
                  call.outputs[2].As<float>(), DataOrNull<void>(call.outputs, 3), StreamOf(call));
}

// x, w, mean, rstd, dy -> dx; with an addend: dx + addend
void LayerNormGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  LaunchLayerNormGrad(FloatTypeOf(x), x.data, call.inputs[1].data, call.inputs[2].As<float>(),
                      call.inputs[3].As<float>(), call.inputs[4].data, DataOrNull<void>(call.inputs, 5), RowsOf(x),
                      ColumnsOf(x), call.outputs[0].data, StreamOf(call));
}

// x, mean, rstd, dy -> dw, dbias f32[d]
void LayerNormWeightGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  auto* workspace = WorkspaceOf<float>(call, ColumnSumBytes(2, rows, width));
  LaunchLayerNormWeightGrad(FloatTypeOf(x), x.data, call.inputs[1].As<float>(), call.inputs[2].As<float>(),
                            call.inputs[3].data, rows, width, call.outputs[0].As<float>(), call.outputs[1].As<float>(),
                            call.accumulate, workspace, StreamOf(call));
}

}  // namespace espalier::cuda
