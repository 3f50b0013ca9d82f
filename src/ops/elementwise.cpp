// Addition, the SwiGLU gate (Shazeer 2020, eq. 6), casts, and sums over microbatches.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters SameLetters(const OpContext& c) {
  const std::string letters = LettersOfRank(c.Extents(0).size());
  const size_t outputs = c.op.kind == "swiglu_grad" ? 2 : 1;
  return {std::vector(c.inputs.size(), letters), std::vector(outputs, letters), letters};
}
std::vector<Type> SameType(const OpContext& c) {
  const size_t outputs = c.op.kind == "swiglu_grad" ? 2 : 1;
  return std::vector(outputs, MakeType(c.ElementType(0), c.Extents(0)));
}

void AddGradient(GradientBuilder& g) {
  for (int i = 0; i < 2; ++i) g.Pass(i, g.Adjoint(0));
}
void SwigluGradient(GradientBuilder& g) { g.Emit("swiglu_grad", {g.Input(0), g.Input(1), g.Adjoint(0)}, {}, {0, 1}); }

std::vector<Type> CastInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "cast to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0))};
}

}  // namespace

OpDefinition Add() {
  return {.kind = "add",
          .summary = "sum of its inputs, in their order",
          .letters = SameLetters,
          .infer = SameType,
          .gradient = AddGradient,
          .in_place = {{0, 0}},
          .jointly_linear = true};
}
OpDefinition Swiglu() {
  return {.kind = "swiglu",
          .summary = "silu(gate) times up",
          .letters = SameLetters,
          .infer = SameType,
          .gradient = SwigluGradient};
}
OpDefinition SwigluGrad() {
  return {.kind = "swiglu_grad",
          .summary = "adjoint of swiglu in gate and up",
          .letters = SameLetters,
          .infer = SameType,
          .in_place = {{0, 2}}};
}
OpDefinition Accumulate() {
  return {.kind = "accumulate",
          .summary = "adds a microbatch's values to an accumulator",
          .letters = SameLetters,
          .infer = SameType,
          .accumulates = true};
}
OpDefinition Cast() {
  return {.kind = "cast",
          .summary = "another element type",
          .letters = SameLetters,
          .infer = CastInfer,
          .linear_inputs = 1};
}

}  // namespace espalier
