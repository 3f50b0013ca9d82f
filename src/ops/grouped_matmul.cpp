// Matmuls of rows of experts: each row is multiplied by the weight of its expert. A weight of E experts is stored as
// [e, out, in], "enk"; rows are [e,b,r,width] (src/ops/dispatch.cpp), and the last input has the expert of each row, in
// ascending order. There are three specs, as for a linear layer: y = x W^T ("ebsk,enk->ebsn"), dx = dy W
// ("ebsn,enk->ebsk"), dW = dy^T x of the rows of each expert ("ebsn,ebsk->enk", in fp32).
//
// Operands in fp8 (pass `quantize`) have scales, which are the last two inputs: one per row of experts, and one per
// expert with {scales="tensor"}, or with "row" one per row of its weight, which is stored contiguous along the
// contracted dim ("ebsn,ekn->ebsk" for dx). The gradient of weights is never in fp8.
#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

constexpr std::string_view kForward = "ebsk,enk->ebsn", kInputGradient = "ebsn,enk->ebsk",
                           kWeightGradient = "ebsn,ebsk->enk";

Einsum GroupedEinsum(const OpContext& c) {
  const MatmulSpec spec = GroupedSpecOf(c.op.attributes);
  Einsum einsum{{spec.a, spec.b, "ebs"}, {spec.result}, "ebs", Reduce::kSum, "e"};
  if (const auto scales = c.op.attributes.texts.find("scales"); scales != c.op.attributes.texts.end()) {
    einsum.inputs.emplace_back("ebs");
    einsum.inputs.push_back(scales->second == "row" ? spec.b.substr(0, 2) : "e");
  }
  return einsum;
}

std::vector<Type> GroupedInfer(const OpContext& c) {
  const MatmulSpec spec = GroupedSpecOf(c.op.attributes);
  Shape shape = c.Extents(0);
  if (spec.MakesWeightGradient()) return {MakeType(Dtype::kF32, {shape.at(0), shape.at(3), c.Extents(1).at(3)})};
  shape.at(3) = c.Extents(1).at(spec.b.find(spec.result.back()));
  return {MakeType(IsFp8(c.ElementType(0)) ? Dtype::kBf16 : c.ElementType(0), std::move(shape))};
}

void GroupedGradient(GradientBuilder& g) {
  Attributes input = g.ForwardAttributes(), weight = input;
  CHECK(input.Text("spec") == kForward, "only the forward grouped_matmul has a gradient");
  input.texts["spec"] = kInputGradient;
  weight.texts["spec"] = kWeightGradient;
  g.Emit(OpKind::kGroupedMatmul, {g.Adjoint(0), g.Input(1), g.Input(2)}, input, {0});
  g.Emit(OpKind::kGroupedMatmul, {g.Adjoint(0), g.Input(0), g.Input(2)}, weight, {1});
}

/// Two for each row that balanced routing fills, and each element of an expert's matrix.
double GroupedFlops(const LocalOp& c) {
  const double rows = FilledShare(c.op.attributes) * double(Volume(c.inputs.at(2)));
  const Shape& matrix = c.op.attributes.Text("spec") == kWeightGradient ? c.outputs.at(0) : c.inputs.at(1);
  return 2 * rows * double(matrix.at(1)) * double(matrix.at(2));
}

}  // namespace

OpDefinition GroupedMatmul() {
  return {.summary = "matmul of each row with the weight of its expert; `spec` gives the einsum dims",
          .einsum = GroupedEinsum,
          .infer = GroupedInfer,
          .kernel = {.rows = Rows::kTogether,
                     .work = GroupedFlops,
                     .key = KeyAttributes{.texts = {"spec", "scales"}, .numbers = kKeyOfRows.numbers}},
          .gradient = GroupedGradient};
}

}  // namespace espalier
