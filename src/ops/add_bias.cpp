// A vector added to every token. The op is not linear in the tokens alone, so a matmul that is partial over tp is
// reduced before its bias is added: once, not once per rank.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum AddBiasEinsum(const OpContext&) { return {{"bsn", "n"}, {"bsn"}, "bsn"}; }
std::vector<Type> AddBiasInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void AddBiasGradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit(OpKind::kBiasGrad, {g.Adjoint(0)}, {}, {1});
}

Einsum AddBiasGradEinsum(const OpContext&) { return {{"bsn"}, {"n"}, "bsn"}; }
std::vector<Type> AddBiasGradInfer(const OpContext& c) { return {MakeType(Dtype::kF32, {c.Extents(0)[2]})}; }

}  // namespace

OpDefinition AddBias() {
  return {.summary = "a vector added to every token",
          .einsum = AddBiasEinsum,
          .infer = AddBiasInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = AddBiasGradient,
          .in_place = {{0, 0}}};
}
OpDefinition BiasGrad() {
  return {.summary = "adjoint of add_bias in its bias: the sum over tokens",
          .einsum = AddBiasGradEinsum,
          .infer = AddBiasGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .linear_inputs = 1};
}

}  // namespace espalier
