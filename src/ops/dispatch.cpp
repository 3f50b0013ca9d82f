// Rows of experts. `dispatch` copies each token once for each of its experts on this rank, so that the rows of an
// expert follow one another: in the order of experts, and for each expert in the order of its tokens. `combine` adds up
// the rows of each token, in the order in which the router chose its experts.
//
//   x [b,s,d]                          rows [e,b,r,d]: by expert, as many as there are, then others that nobody reads
//   chosen [b,s,k]    -> dispatch ->   row_weights, row_experts [e,b,r]: of each row; row_experts ascends
//   weights [b,s,k]                    places [g,b,s,k]: the row of the token's i-th expert; -1: none here
//
//   rows, places  ->  combine  ->  y [b,s,d]
//
// The rows of a rank are one pool, e b r of them: r (`rows`) for each expert and sequence, which is what balanced
// routing needs times experts.buffer. Where the routing has more, there are further passes (src/passes/expert_passes);
// pass p has those from p e b r on. r is sharded as s is, and e over the g ranks that share experts (`ranks`). Such
// ranks have the same tokens, so y is a partial sum over them. What a row holds follows from the placement: no value of
// rows is resharded, and all ops on them keep their e ("anchored"). `load` is balanced routing's share of the pool, in
// percent.
#include <algorithm>

#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Shape RowsOf(const OpContext& c, const Shape& tokens) {
  return {c.op.attributes.Integer("experts"), tokens.at(0), c.op.attributes.Integer("rows")};
}
Shape WithWidth(Shape rows, int64_t width) {
  rows.push_back(width);
  return rows;
}

/// x, chosen, weights.
Einsum DispatchEinsum(const OpContext&) {
  return {{"bsd", "bsk", "bsk"}, {"ebsd", "ebs", "ebs", "ebsk"}, "ebs", Reduce::kSum, "e"};
}
std::vector<Type> DispatchInfer(const OpContext& c) {
  const Shape &x = c.Extents(0), &chosen = c.Extents(1), rows = RowsOf(c, x);
  return {MakeType(c.ElementType(0), WithWidth(rows, x.at(2))), MakeType(Dtype::kF32, rows),
          MakeType(Dtype::kI32, rows),
          MakeType(Dtype::kI32, {c.op.attributes.Integer("ranks"), chosen.at(0), chosen.at(1), chosen.at(2)})};
}
void DispatchGradient(GradientBuilder& g) {
  g.Emit(OpKind::kDispatchGrad, {g.Adjoint(0), g.Adjoint(1), g.Output(3)}, g.ForwardAttributes(), {0, 2});
}

/// Adjoints of rows and of their weights, places.
Einsum DispatchGradEinsum(const OpContext&) {
  return {{"ebsd", "ebs", "ebsk"}, {"bsd", "bsk"}, "ebs", Reduce::kSum, "e"};
}
std::vector<Type> DispatchGradInfer(const OpContext& c) {
  const Shape& places = c.Extents(2);
  return {MakeType(c.ElementType(0), {places.at(1), places.at(2), c.Extents(0).at(3)}),
          MakeType(Dtype::kF32, {places[1], places[2], places.at(3)})};
}

/// Rows, places.
Einsum CombineEinsum(const OpContext&) { return {{"ebsd", "ebsk"}, {"bsd"}, "ebs", Reduce::kSum, "e"}; }
std::vector<Type> CombineInfer(const OpContext& c) {
  const Shape& places = c.Extents(1);
  return {MakeType(c.ElementType(0), {places.at(1), places.at(2), c.Extents(0).at(3)})};
}
void CombineGradient(GradientBuilder& g) {
  g.Emit(OpKind::kCombineGrad, {g.Adjoint(0), g.Input(1)}, g.ForwardAttributes(), {0});
}

/// The adjoint of y, places.
Einsum CombineGradEinsum(const OpContext&) { return {{"bsd", "ebsk"}, {"ebsd"}, "ebs", Reduce::kSum, "e"}; }
std::vector<Type> CombineGradInfer(const OpContext& c) {
  return {MakeType(c.ElementType(0), WithWidth(RowsOf(c, c.Extents(0)), c.Extents(0).at(2)))};
}

}  // namespace

double FilledShare(const Attributes& a) {
  return std::clamp(a.NumberOr("load", 100) / 100 - a.NumberOr("pass", 0), 0.0, 1.0);
}
double FilledRowsOnce(const LocalOp& op, bool accumulate) {
  return FilledShare(op.op.attributes) * EachOperandOnce(op, accumulate);
}

OpDefinition Dispatch() {
  return {.summary = "a row for each expert of each token, in the order of experts; its weight, expert and place",
          .einsum = DispatchEinsum,
          .infer = DispatchInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows},
          .gradient = DispatchGradient};
}
OpDefinition DispatchGrad() {
  return {.summary = "adjoint of dispatch in tokens and weights",
          .einsum = DispatchGradEinsum,
          .infer = DispatchGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows}};
}
OpDefinition Combine() {
  return {.summary = "the sum of the rows of each token",
          .einsum = CombineEinsum,
          .infer = CombineInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows},
          .gradient = CombineGradient};
}
OpDefinition CombineGrad() {
  return {.summary = "adjoint of combine in the rows",
          .einsum = CombineGradEinsum,
          .infer = CombineGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows}};
}

}  // namespace espalier
