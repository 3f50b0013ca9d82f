#include "bias.hpp"

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// x T[b,s,n], bias T[n] -> T[b,s,n]
void AddBias(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  LaunchAddBias(FloatTypeOf(x), x.data, call.inputs[1].data, RowsOf(x), ColumnsOf(x), call.outputs[0].data,
                StreamOf(call));
}

// dy T[b,s,n] -> f32[n]
void BiasGrad(const KernelCall& call) {
  const Tensor& dy = call.inputs[0];
  const int64_t rows = RowsOf(dy), width = ColumnsOf(dy);
  auto* workspace = WorkspaceOf<float>(call, ColumnSumBytes(1, rows, width));
  LaunchBiasGrad(FloatTypeOf(dy), dy.data, rows, width, call.outputs[0].As<float>(), call.accumulate, workspace,
                 StreamOf(call));
}

}  // namespace espalier::cuda
