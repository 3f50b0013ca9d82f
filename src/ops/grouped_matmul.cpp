// Matmuls of rows of experts: each row is multiplied by the weight of its expert. A weight of E experts is stored as
// [e, out, in], "enk"; rows are [e,b,r,width] (src/ops/dispatch.cpp), and the last input has the expert of each row, in
// ascending order. The three specs are those of a linear layer: y = x W^T ("ebsk,enk->ebsn"), dx = dy W
// ("ebsn,enk->ebsk"), dW = dy^T x of the rows of each expert ("ebsn,ebsk->enk", in fp32).
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

constexpr std::string_view kForward = "ebsk,enk->ebsn", kInputGradient = "ebsn,enk->ebsk",
                           kWeightGradient = "ebsn,ebsk->enk";

Einsum GroupedEinsum(const OpContext& c) {
  const std::string& spec = c.op.attributes.Text("spec");
  CHECK(spec == kForward || spec == kInputGradient || spec == kWeightGradient, "grouped_matmul of {}", spec);
  const size_t comma = spec.find(','), arrow = spec.find("->");
  return {{spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1), "ebs"},
          {spec.substr(arrow + 2)},
          "ebs",
          Reduce::kSum,
          "e"};
}

std::vector<Type> GroupedInfer(const OpContext& c) {
  const std::string& spec = c.op.attributes.Text("spec");
  Shape shape = c.Extents(0);
  if (spec == kWeightGradient) return {MakeType(Dtype::kF32, {shape.at(0), shape.at(3), c.Extents(1).at(3)})};
  shape.at(3) = c.Extents(1).at(spec == kForward ? 1 : 2);
  return {MakeType(c.ElementType(0), std::move(shape))};
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
                     .key = KeyAttributes{.texts = {"spec"}, .numbers = kKeyOfRows.numbers}},
          .gradient = GroupedGradient};
}

}  // namespace espalier
