#include "rope.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

// x T[b,s,n], table f32[s,e] -> T[b,s,n]
void Rope(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  const float sign = call.attributes->NumberOr("inverse", 0) != 0 ? -1.0f : 1.0f;
  CHECK(e % 2 == 0 && ColumnsOf(x) % e == 0, "rope: {} does not hold heads of {}", ToString(x.shape), e);
  LaunchRope(FloatTypeOf(x), x.data, call.inputs[1].As<float>(), sign, RowsOf(x), x.shape[1], ColumnsOf(x), e / 2,
             call.outputs[0].data, StreamOf(call));
}

// positions i32[s] -> f32[s,e]: cosines, then sines
void RopeTable(const KernelCall& call) {
  const auto e = static_cast<int64_t>(call.attributes->Number("head_dim"));
  LaunchRopeTable(call.inputs[0].As<int32_t>(), Volume(call.inputs[0].shape), call.attributes->Number("theta"), e,
                  call.outputs[0].As<float>(), StreamOf(call));
}

}  // namespace espalier::cuda
