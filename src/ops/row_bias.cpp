// Biases of experts: each row gets the bias of its expert, y = x + bias, or with weights of rows y = x + weight bias.
// The weight of a row is applied before the down projection (weighted_swiglu), so the bias of that projection gets it
// here. Rows without an expert are left out.
//
//   add_row_bias   x, bias [e,n], experts, [weights]  ->  y      dx = dy
//   row_bias_grad  dy, experts, [weights]             ->  dbias: the sum over the rows of each expert
//   row_weight_grad  dy, bias, experts                ->  dweights: the bias of the row's expert times dy
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum OfRows(const OpContext& c, std::vector<std::string> inputs, const char* output) {
  inputs.resize(c.inputs.size(), "ebs");  // experts of the rows, and weights
  return {std::move(inputs), {output}, "ebs", Reduce::kSum, "e"};
}

Einsum AddRowBiasEinsum(const OpContext& c) { return OfRows(c, {"ebsn", "en"}, "ebsn"); }
std::vector<Type> AddRowBiasInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void AddRowBiasGradient(GradientBuilder& g) {
  const bool weighted = g.Inputs() > 3;
  std::vector<int> inputs = {g.Adjoint(0), g.Input(2)};
  if (weighted) inputs.push_back(g.Input(3));
  g.Pass(0, g.Adjoint(0));
  g.Emit(OpKind::kRowBiasGrad, std::move(inputs), g.ForwardAttributes(), {1});
  if (weighted) g.Emit(OpKind::kRowWeightGrad, {g.Adjoint(0), g.Input(1), g.Input(2)}, g.ForwardAttributes(), {3});
}

Einsum RowBiasGradEinsum(const OpContext& c) { return OfRows(c, {"ebsn"}, "en"); }
std::vector<Type> RowBiasGradInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.Extents(0).at(0), c.Extents(0).at(3)})};
}

Einsum RowWeightGradEinsum(const OpContext& c) { return OfRows(c, {"ebsn", "en"}, "ebs"); }
std::vector<Type> RowWeightGradInfer(const OpContext& c) { return {MakeType(Dtype::kF32, c.Extents(2))}; }

}  // namespace

OpDefinition AddRowBias() {
  return {.summary = "the bias of its expert added to each row, times the weight of the row if there are weights",
          .einsum = AddRowBiasEinsum,
          .infer = AddRowBiasInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows},
          .gradient = AddRowBiasGradient,
          .in_place = {{0, 0}}};
}
OpDefinition RowBiasGrad() {
  return {.summary = "adjoint of add_row_bias in the biases",
          .einsum = RowBiasGradEinsum,
          .infer = RowBiasGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows}};
}
OpDefinition RowWeightGrad() {
  return {.summary = "adjoint of add_row_bias in the weights of rows",
          .einsum = RowWeightGradEinsum,
          .infer = RowWeightGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows}};
}

}  // namespace espalier
