// Rotary position embedding (Su et al. 2021, eq. 34), rotate-half as in Hugging Face's Llama. The table of cosines and
// sines depends on positions alone, so it is made once a step. The adjoint is the rotation by the opposite angle.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters RopeLetters(const OpContext&) { return {{"bsh", "se"}, {"bsh"}, "bsh"}; }
std::vector<Type> RopeInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void Gradient(GradientBuilder& g) {
  Attributes attributes = g.ForwardAttributes();
  attributes.numbers["inverse"] = 1 - attributes.Number("inverse");
  g.Emit("rope", {g.Adjoint(0), g.Input(1)}, attributes, {0});
}

Letters TableLetters(const OpContext&) { return {{"s"}, {"se"}, "s"}; }
std::vector<Type> TableInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.Extents(0)[0], static_cast<int64_t>(c.op.attributes.Number("head_dim"))})};
}

}  // namespace

OpDefinition Rope() {
  return {.kind = "rope",
          .summary = "rotates pairs of each head by position",
          .letters = RopeLetters,
          .infer = RopeInfer,
          .gradient = Gradient,
          .in_place = {{0, 0}},
          .linear_inputs = 1};
}
OpDefinition RopeTable() {
  return {.kind = "rope_table",
          .summary = "cosines and sines of every position's angles",
          .letters = TableLetters,
          .infer = TableInfer};
}

}  // namespace espalier
