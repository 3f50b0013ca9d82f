// Causal attention with grouped heads (Vaswani et al. 2017, eq. 1; blocks as in Dao 2023). q is [b, s, heads e], k and
// v are [b, t, kv_heads e]; the letter h stands for heads in all of them, since tp cuts both into equal numbers of
// groups, and H for the fewer kv heads, which ranks along kv_replicate share: there the adjoints of k and v are partial
// sums. The log of the softmax denominators is kept, so that backward recomputes probabilities block by block.
//
// Under context parallelism (src/passes/context_parallel.cpp) attributes `cp` and `length` say that rows lie in zigzag
// order, and queries may be cut. With `hop` the keys are cut like the queries, and are those of the member that many
// places before: one block of a ring (Liu et al. 2023), whose fp32 results are parts of a softmax, or of a sum of
// gradients.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

bool Has(const OpContext& c, std::string_view attribute) { return c.op.attributes.numbers.contains(attribute); }

/// Letters of keys and values, and those that may be sharded.
std::string KeyLetters(const OpContext& c) { return Has(c, "hop") ? "bsH" : "btH"; }
std::string Shardable(const OpContext& c) { return Has(c, "cp") ? "bsh" : "bh"; }

Dtype ResultType(const OpContext& c) { return Has(c, "hop") ? Dtype::kF32 : c.ElementType(0); }

Letters ForwardLetters(const OpContext& c) {
  return {{"bsh", KeyLetters(c), KeyLetters(c)}, {"bsh", "bhs"}, Shardable(c)};
}
std::vector<Type> ForwardInfer(const OpContext& c) {
  const Shape& q = c.Extents(0);
  const auto heads = q[2] / static_cast<int64_t>(c.op.attributes.Number("head_dim"));
  return {MakeType(ResultType(c), q), MakeType(Dtype::kF32, {q[0], heads, q[1]})};
}
void Gradient(GradientBuilder& g) {
  g.Emit("attention_grad", {g.Input(0), g.Input(1), g.Input(2), g.Output(0), g.Output(1), g.Adjoint(0)},
         g.ForwardAttributes(), {0, 1, 2});
}
/// Two products over the visible half of the score matrix; zigzag order leaves half of each block of a ring visible.
double ForwardFlops(const LocalOp& c) { return 2.0 * double(Volume(c.inputs[0])) * double(c.inputs[1][1]); }

Letters BackwardLetters(const OpContext& c) {
  const std::string keys = KeyLetters(c);
  return {{"bsh", keys, keys, "bsh", "bhs", "bsh"}, {"bsh", keys, keys}, Shardable(c)};
}
std::vector<Type> BackwardInfer(const OpContext& c) {
  const Dtype dtype = ResultType(c);
  return {MakeType(dtype, c.Extents(0)), MakeType(dtype, c.Extents(1)), MakeType(dtype, c.Extents(2))};
}
/// Five products where forward has two.
double BackwardFlops(const LocalOp& c) { return 2.5 * ForwardFlops(c); }

Letters MergeLetters(const OpContext&) { return {{"bsh", "bhs", "bsh", "bhs"}, {"bsh", "bhs"}, "bsh"}; }
std::vector<Type> MergeInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "attention_merge to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0)), MakeType(Dtype::kF32, c.Extents(1))};
}

}  // namespace

OpDefinition Attention() {
  return {.kind = "attention",
          .summary = "causal attention with grouped heads",
          .letters = ForwardLetters,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .flops = ForwardFlops};
}
OpDefinition AttentionGrad() {
  return {.kind = "attention_grad",
          .summary = "adjoint of attention in q, k and v",
          .letters = BackwardLetters,
          .infer = BackwardInfer,
          .flops = BackwardFlops};
}
OpDefinition AttentionMerge() {
  return {.kind = "attention_merge",
          .summary = "two parts of one softmax, each over keys of its own, as one",
          .letters = MergeLetters,
          .infer = MergeInfer,
          .in_place = {{0, 0}}};
}

}  // namespace espalier
