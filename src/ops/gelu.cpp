// GELU by its tanh form (Hendrycks and Gimpel 2016, section 2), "gelu_new" of Hugging Face's GPT-2:
// y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters SameLetters(const OpContext& c) {
  const std::string letters = LettersOfRank(c.Extents(0).size());
  return {std::vector(c.inputs.size(), letters), {letters}, letters};
}
std::vector<Type> SameType(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

void Gradient(GradientBuilder& g) { g.Emit("gelu_grad", {g.Input(0), g.Adjoint(0)}, {}, {0}); }

}  // namespace

OpDefinition Gelu() {
  return {.kind = "gelu",
          .summary = "Gaussian error linear unit, tanh form",
          .letters = SameLetters,
          .infer = SameType,
          .gradient = Gradient,
          .in_place = {{0, 0}}};
}
OpDefinition GeluGrad() {
  return {.kind = "gelu_grad",
          .summary = "adjoint of gelu",
          .letters = SameLetters,
          .infer = SameType,
          .in_place = {{0, 1}}};
}

}  // namespace espalier
