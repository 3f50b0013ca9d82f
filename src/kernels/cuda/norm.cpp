#include "norm.hpp"

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// x T[b,s,d], w T[d] -> y T[b,s,d], rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void RmsNorm(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const auto eps = static_cast<float>(call.attributes->Number("eps"));
  LaunchRmsNorm(FloatTypeOf(x), x.data, call.inputs[1].data, DataOrNull<void>(call.inputs, 2), eps, RowsOf(x),
                ColumnsOf(x), call.outputs[0].data, call.outputs[1].As<float>(), DataOrNull<void>(call.outputs, 2),
                StreamOf(call));
}

// x, w, rstd, dy -> dx; with an addend: dx + addend
void RmsNormGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  LaunchRmsNormGrad(FloatTypeOf(x), x.data, call.inputs[1].data, call.inputs[2].As<float>(), call.inputs[3].data,
                    DataOrNull<void>(call.inputs, 4), RowsOf(x), ColumnsOf(x), call.outputs[0].data, StreamOf(call));
}

// x, rstd, dy -> dw f32[d]
void RmsNormWeightGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t rows = RowsOf(x), width = ColumnsOf(x);
  auto* workspace = WorkspaceOf<float>(call, ColumnSumBytes(1, rows, width));
  LaunchRmsNormWeightGrad(FloatTypeOf(x), x.data, call.inputs[1].As<float>(), call.inputs[2].data, rows, width,
                          call.outputs[0].As<float>(), call.accumulate, workspace, StreamOf(call));
}

}  // namespace espalier::cuda
