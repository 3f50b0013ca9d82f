// A vector added to every token. The sum is not linear in the tokens alone, so a product that is partial over tp is
// joined before its bias is added: once, not once per rank.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters ForwardLetters(const OpContext&) { return {{"bsn", "n"}, {"bsn"}, "bsn"}; }
std::vector<Type> ForwardInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void Gradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit("bias_grad", {g.Adjoint(0)}, {}, {1});
}

Letters BackwardLetters(const OpContext&) { return {{"bsn"}, {"n"}, "bsn"}; }
std::vector<Type> BackwardInfer(const OpContext& c) { return {MakeType(Dtype::kF32, {c.Extents(0)[2]})}; }

}  // namespace

OpDefinition AddBias() {
  return {.kind = "add_bias",
          .summary = "a vector added to every token",
          .letters = ForwardLetters,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .in_place = {{0, 0}}};
}
OpDefinition BiasGrad() {
  return {.kind = "bias_grad",
          .summary = "adjoint of add_bias in its bias: the sum over tokens",
          .letters = BackwardLetters,
          .infer = BackwardInfer};
}

}  // namespace espalier
