// A vector added to every token. The op is not linear in the tokens alone, so a matmul that is partial over tp is
// reduced before its bias is added: once, not once per rank.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum ForwardEinsum(const OpContext&) { return {{"bsn", "n"}, {"bsn"}, "bsn"}; }
std::vector<Type> ForwardInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void Gradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit(OpKind::kBiasGrad, {g.Adjoint(0)}, {}, {1});
}

Einsum BackwardEinsum(const OpContext&) { return {{"bsn"}, {"n"}, "bsn"}; }
std::vector<Type> BackwardInfer(const OpContext& c) { return {MakeType(Dtype::kF32, {c.Extents(0)[2]})}; }

}  // namespace

OpDefinition AddBias() {
  return {.kind = OpKind::kAddBias,
          .summary = "a vector added to every token",
          .einsum = ForwardEinsum,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .in_place = {{0, 0}}};
}
OpDefinition BiasGrad() {
  return {.kind = OpKind::kBiasGrad,
          .summary = "adjoint of add_bias in its bias: the sum over tokens",
          .einsum = BackwardEinsum,
          .infer = BackwardInfer,
          .linear_inputs = 1};
}

}  // namespace espalier
