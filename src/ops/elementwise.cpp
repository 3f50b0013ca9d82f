// Addition, the SwiGLU gate (Shazeer 2020, eq. 6), casts, and sums over microbatches. Gate and up may be joined
// (graph/columns.hpp), and then so are their gradients.
#include "espalier/graph/columns.hpp"
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

size_t Outputs(const Op& op) {
  return op.kind == OpKind::kSwigluGrad && !op.attributes.texts.contains(kColumns) ? 2 : 1;
}
Einsum SameEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.Extents(0).size());
  return {std::vector(c.inputs.size(), dims), std::vector(Outputs(c.op), dims), dims};
}
std::vector<Type> SameType(const OpContext& c) {
  return std::vector(Outputs(c.op), MakeType(c.ElementType(0), c.Extents(0)));
}
std::vector<Type> SwigluInfer(const OpContext& c) {
  Type type = MakeType(c.ElementType(0), c.Extents(0));
  if (const std::vector<int64_t> columns = ColumnsOf(c.op.attributes); !columns.empty()) {
    CHECK(columns.size() == 2 && columns[0] == columns[1], "swiglu: gate and up have other widths");
    type.shape.back() = columns[0];
  }
  return {std::move(type)};
}

void AddGradient(GradientBuilder& g) {
  for (int i = 0; i < g.Inputs(); ++i) g.Pass(i, g.Adjoint(0));
}
void SwigluGradient(GradientBuilder& g) {
  g.Emit(OpKind::kSwigluGrad, {g.Input(0), g.Input(1), g.Adjoint(0)}, {}, {0, 1});
}

std::vector<Type> CastInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "cast to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0))};
}

}  // namespace

OpDefinition Add() {
  return {.summary = "sum of its inputs, in their order",
          .einsum = SameEinsum,
          .infer = SameType,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = AddGradient,
          .in_place = {{0, 0}},
          .jointly_linear = true};
}
OpDefinition Swiglu() {
  return {.summary = "silu(gate) times up",
          .einsum = SameEinsum,
          .infer = SwigluInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = SwigluGradient,
          .joinable = {2, 0}};
}
OpDefinition SwigluGrad() {
  return {.summary = "adjoint of swiglu in gate and up",
          .einsum = SameEinsum,
          .infer = SameType,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 2}, {0, 0}},
          .joinable = {2, 2}};
}
OpDefinition Accumulate() {
  return {.summary = "adds a microbatch's values to an accumulator",
          .einsum = SameEinsum,
          .infer = SameType,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .accumulates = true};
}
OpDefinition Cast() {
  return {.summary = "another element type",
          .einsum = SameEinsum,
          .infer = CastInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Texts("to")},
          .linear_inputs = 1};
}

}  // namespace espalier
