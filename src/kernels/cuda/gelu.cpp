#include "gelu.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

// x -> x sigmoid(2 u)
void Gelu(const KernelCall& call) {
  const Tensor& y = call.outputs[0];
  LaunchGelu(FloatTypeOf(y), call.inputs[0].data, y.data, Volume(y.shape), StreamOf(call));
}

// x, dy -> dx
void GeluGrad(const KernelCall& call) {
  const Tensor& dx = call.outputs[0];
  LaunchGeluGrad(FloatTypeOf(dx), call.inputs[0].data, call.inputs[1].data, dx.data, Volume(dx.shape), StreamOf(call));
}

}  // namespace espalier::cuda
