// Rotary position embedding (Su et al. 2021, eq. 34), rotate-half as in Hugging Face's Llama; with the attribute
// `adjacent` pairs are neighbours, as in the paper. The columns of a head from `first` (absent: 0) on are rotated, as
// many as the table has. It depends on positions alone, so it is computed once per step. The gradient is the rotation
// by the opposite angle. In a joined tensor (graph/columns.hpp) all parts but the last are rotated: queries and keys
// beside values.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum RopeEinsum(const OpContext&) { return {{"bsh", "se"}, {"bsh"}, "bsh"}; }
std::vector<Type> RopeInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void RopeGradient(GradientBuilder& g) {
  Attributes attributes = g.ForwardAttributes();
  attributes.numbers["inverse"] = 1 - attributes.Number("inverse");
  g.Emit(OpKind::kRope, {g.Adjoint(0), g.Input(1)}, attributes, {0});
}

Einsum TableEinsum(const OpContext&) { return {{"s"}, {"se"}, "s"}; }
std::vector<Type> TableInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.Extents(0)[0], c.op.attributes.Integer("head_dim")})};
}

}  // namespace

OpDefinition Rope() {
  return {.summary = "rotates pairs of each head by position",
          .einsum = RopeEinsum,
          .infer = RopeInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .gradient = RopeGradient,
          .in_place = {{0, 0}},
          .linear_inputs = 1};
}
OpDefinition RopeTable() {
  return {.summary = "cosines and sines of every position's angles",
          .einsum = TableEinsum,
          .infer = TableInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("head_dim")}};
}

}  // namespace espalier
