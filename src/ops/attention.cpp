// Causal attention with grouped heads (Vaswani et al. 2017, eq. 1; blocks as in Dao 2023). q is [b, s, heads e], k and v are
// [b, t, kv_heads e]; the letter h stands for heads in all of them, since tp cuts both into equal numbers of groups. The log of the
// softmax denominators is kept, so that backward recomputes probabilities block by block.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters ForwardLetters(const OpContext&) { return {{"bsh", "bth", "bth"}, {"bsh", "bhs"}, "bh"}; }
std::vector<Type> ForwardInfer(const OpContext& c) {
  const Shape& q = c.Extents(0);
  const auto heads = q[2] / static_cast<int64_t>(c.op.attributes.Number("head_dim"));
  return {MakeType(c.ElementType(0), q), MakeType(Dtype::kF32, {q[0], heads, q[1]})};
}
void Gradient(GradientBuilder& g) {
  g.Emit("attention_grad", {g.Input(0), g.Input(1), g.Input(2), g.Output(0), g.Output(1), g.Adjoint(0)},
         g.ForwardAttributes(), {0, 1, 2});
}
/// Two products over the visible half of the score matrix.
double ForwardFlops(const LocalOp& c) {
  return 2.0 * double(Volume(c.inputs[0])) * double(c.inputs[1][1]);
}

Letters BackwardLetters(const OpContext&) {
  return {{"bsh", "bth", "bth", "bsh", "bhs", "bsh"}, {"bsh", "bth", "bth"}, "bh"};
}
std::vector<Type> BackwardInfer(const OpContext& c) {
  return {MakeType(c.ElementType(0), c.Extents(0)), MakeType(c.ElementType(1), c.Extents(1)),
          MakeType(c.ElementType(2), c.Extents(2))};
}
/// Five products where forward has two.
double BackwardFlops(const LocalOp& c) { return 2.5 * ForwardFlops(c); }

}  // namespace

OpDefinition Attention() {
  return {.kind = "attention", .summary = "causal attention with grouped heads", .letters = ForwardLetters,
          .infer = ForwardInfer, .gradient = Gradient, .flops = ForwardFlops};
}
OpDefinition AttentionGrad() {
  return {.kind = "attention_grad", .summary = "adjoint of attention in q, k and v", .letters = BackwardLetters,
          .infer = BackwardInfer, .flops = BackwardFlops};
}

}  // namespace espalier
