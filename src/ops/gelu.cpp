// GELU by its tanh form (Hendrycks and Gimpel 2016, section 2), "gelu_new" of Hugging Face's GPT-2:
// y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum GeluEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.Extents(0).size());
  return {std::vector(c.inputs.size(), dims), {dims}, dims};
}
std::vector<Type> GeluInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

void GeluGradient(GradientBuilder& g) { g.Emit(OpKind::kGeluGrad, {g.Input(0), g.Adjoint(0)}, {}, {0}); }

}  // namespace

OpDefinition Gelu() {
  return {.summary = "Gaussian error linear unit, tanh form",
          .einsum = GeluEinsum,
          .infer = GeluInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = GeluGradient,
          .in_place = {{0, 0}}};
}
OpDefinition GeluGrad() {
  return {.summary = "adjoint of gelu",
          .einsum = GeluEinsum,
          .infer = GeluInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 1}}};
}

}  // namespace espalier
