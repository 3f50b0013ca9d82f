#include "elementwise.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

// x_0, x_1, ... -> their sum, in order, fp32 inside
void Add(const KernelCall& call) {
  const Tensor& y = call.outputs[0];
  CHECK(call.inputs.size() <= kMostTerms, "add: {} terms, at most {}", call.inputs.size(), kMostTerms);
  Terms terms{};
  for (const Tensor& x : call.inputs) {
    CHECK(x.dtype == y.dtype, "add: types differ");
    terms.pointers[terms.count++] = x.data;
  }
  LaunchAdd(FloatTypeOf(y), terms, y.data, Volume(y.shape), StreamOf(call));
}

// x -> y, or y + x
void Accumulate(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  CHECK(x.dtype == Dtype::kF32 && y.dtype == Dtype::kF32, "accumulate: only f32");
  LaunchAccumulate(x.As<float>(), y.As<float>(), Volume(y.shape), call.accumulate, StreamOf(call));
}

// g, u -> silu(g) u
void Swiglu(const KernelCall& call) {
  const Tensor& y = call.outputs[0];
  LaunchSwiglu(FloatTypeOf(y), call.inputs[0].data, call.inputs[1].data, y.data, Volume(y.shape), StreamOf(call));
}

// g, u, dy -> dg, du
void SwigluGrad(const KernelCall& call) {
  const Tensor& dg = call.outputs[0];
  LaunchSwigluGrad(FloatTypeOf(dg), call.inputs[0].data, call.inputs[1].data, call.inputs[2].data, dg.data,
                   call.outputs[1].data, Volume(dg.shape), StreamOf(call));
}

// x -> the same numbers in another type
void Cast(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  LaunchCast(FloatTypeOf(x), FloatTypeOf(y), x.data, y.data, Volume(y.shape), StreamOf(call));
}

}  // namespace espalier::cuda
