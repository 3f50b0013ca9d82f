#include "elementwise.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

void Accumulate(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  CHECK(x.dtype == Dtype::kF32 && y.dtype == Dtype::kF32, "accumulate: only f32");
  LaunchAccumulate(x.As<float>(), y.As<float>(), Volume(y.shape), call.accumulate, StreamOf(call));
}

}  // namespace espalier::cuda
