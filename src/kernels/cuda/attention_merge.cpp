#include "attention_merge.hpp"

#include "kernels.hpp"

namespace espalier::cuda {

// oa f32[b,s,n], lse_a f32[b,h,s], ob, lse_b -> o T[b,s,n], lse f32[b,h,s]
void AttentionMerge(const KernelCall& call) {
  const AttentionShape a = MergedAttentionOf(call);
  const auto in = [&](size_t i) { return call.inputs[i].As<float>(); };
  LaunchAttentionMerge(FloatTypeOf(call.outputs[0]),
                       {in(0), in(1), in(2), in(3), a.batch, a.queries, a.heads, a.head_dim}, call.outputs[0].data,
                       call.outputs[1].As<float>(), StreamOf(call));
}

}  // namespace espalier::cuda
