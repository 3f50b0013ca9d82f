// Causal attention with grouped heads (Vaswani et al. 2017, eq. 1; blocks as in Dao 2023). q is [b, s, heads e], k and
// v are [b, t, kv_heads e]. Heads of q, k and v share one einsum dim h, since tp shards both into equal numbers of
// groups. In k and v it is upper-case (H), which means "not sharded over kv_replicate": ranks along that axis share a
// kv head, and the gradients of k and v are partial sums over it. The log of the softmax denominators (lse) is kept, so
// that backward recomputes probabilities block by block.
//
// Under context parallelism (src/passes/context_parallel.cpp) the attributes `cp` and `length` mean that rows are in
// zigzag order, and queries may be sharded on the sequence. With `hop` the keys are sharded like the queries, and are
// those of the rank `hop` places before: one block of a ring (Liu et al. 2023), whose fp32 results are parts of a
// softmax, or of a sum of gradients.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

bool Has(const OpContext& c, std::string_view attribute) { return c.op.attributes.numbers.contains(attribute); }

/// Einsum of keys and values, and those that may be sharded.
std::string KeyDims(const OpContext& c) { return Has(c, "hop") ? "bsH" : "btH"; }
std::string Shardable(const OpContext& c) { return Has(c, "cp") ? "bsh" : "bh"; }

Dtype ResultType(const OpContext& c) { return Has(c, "hop") ? Dtype::kF32 : c.ElementType(0); }

Einsum ForwardEinsum(const OpContext& c) { return {{"bsh", KeyDims(c), KeyDims(c)}, {"bsh", "bhs"}, Shardable(c)}; }
std::vector<Type> ForwardInfer(const OpContext& c) {
  const Shape& q = c.Extents(0);
  const auto heads = q[2] / c.op.attributes.Integer("head_dim");
  return {MakeType(ResultType(c), q), MakeType(Dtype::kF32, {q[0], heads, q[1]})};
}
void Gradient(GradientBuilder& g) {
  g.Emit(OpKind::kAttentionGrad, {g.Input(0), g.Input(1), g.Input(2), g.Output(0), g.Output(1), g.Adjoint(0)},
         g.ForwardAttributes(), {0, 1, 2});
}
/// Two matmuls over the visible half of the score matrix; in zigzag order half of each block of a ring is visible.
double ForwardFlops(const LocalOp& c) { return 2.0 * double(Volume(c.inputs[0])) * double(c.inputs[1][1]); }

Einsum BackwardEinsum(const OpContext& c) {
  const std::string keys = KeyDims(c);
  return {{"bsh", keys, keys, "bsh", "bhs", "bsh"}, {"bsh", keys, keys}, Shardable(c)};
}
std::vector<Type> BackwardInfer(const OpContext& c) {
  const Dtype dtype = ResultType(c);
  return {MakeType(dtype, c.Extents(0)), MakeType(dtype, c.Extents(1)), MakeType(dtype, c.Extents(2))};
}
/// Five matmuls where forward has two.
double BackwardFlops(const LocalOp& c) { return 2.5 * ForwardFlops(c); }

Einsum MergeEinsum(const OpContext&) { return {{"bsh", "bhs", "bsh", "bhs"}, {"bsh", "bhs"}, "bsh"}; }
std::vector<Type> MergeInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "attention_merge to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0)), MakeType(Dtype::kF32, c.Extents(1))};
}

}  // namespace

OpDefinition Attention() {
  return {.kind = OpKind::kAttention,
          .summary = "causal attention with grouped heads",
          .einsum = ForwardEinsum,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .flops = ForwardFlops};
}
OpDefinition AttentionGrad() {
  return {.kind = OpKind::kAttentionGrad,
          .summary = "adjoint of attention in q, k and v",
          .einsum = BackwardEinsum,
          .infer = BackwardInfer,
          .flops = BackwardFlops};
}
OpDefinition AttentionMerge() {
  return {.kind = OpKind::kAttentionMerge,
          .summary = "two parts of one softmax, each over keys of its own, as one",
          .einsum = MergeEinsum,
          .infer = MergeInfer,
          .in_place = {{0, 0}}};
}

}  // namespace espalier
