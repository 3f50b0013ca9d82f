// Rows of experts. `dispatch` copies each token once for each of its k experts, so that the rows of an expert follow
// one another: in the order of experts, and for each expert in the order of its tokens. `combine` adds up the k rows of
// each token, in the order in which the router chose its experts.
//
//   x [b,s,d]                          rows [b,s,k,d]: the b s k rows of a rank, by expert
//   chosen [b,s,k]    -> dispatch ->   row_weights [b,s,k], row_experts [b,s,k]: of each row; row_experts ascends
//   weights [b,s,k]                    places [b,s,k]: the row of the token's i-th expert
//
//   rows, places  ->  combine  ->  y [b,s,d]
//
// Rows are in this order within the memory of a rank: another placement would have other rows. So no value of rows is
// resharded, and all ops on them shard b and s alone, as their tokens are. `experts` of dispatch is their number.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Shape WithWidth(Shape rows, int64_t width) {
  rows.push_back(width);
  return rows;
}
Type TokensLike(const OpContext& c, int rows) {
  const Shape& shape = c.Extents(rows);
  return MakeType(c.ElementType(rows), {shape.at(0), shape.at(1), shape.at(3)});
}

/// x, chosen, weights.
Einsum DispatchEinsum(const OpContext&) { return {{"bsd", "bsk", "bsk"}, {"bskd", "bsk", "bsk", "bsk"}, "bs"}; }
std::vector<Type> DispatchInfer(const OpContext& c) {
  const Shape& chosen = c.Extents(1);
  return {MakeType(c.ElementType(0), WithWidth(chosen, c.Extents(0).at(2))), MakeType(Dtype::kF32, chosen),
          MakeType(Dtype::kI32, chosen), MakeType(Dtype::kI32, chosen)};
}
void DispatchGradient(GradientBuilder& g) {
  g.Emit(OpKind::kDispatchGrad, {g.Adjoint(0), g.Adjoint(1), g.Output(3)}, {}, {0, 2});
}

/// Adjoints of rows and of their weights, places.
Einsum DispatchGradEinsum(const OpContext&) { return {{"bskd", "bsk", "bsk"}, {"bsd", "bsk"}, "bs"}; }
std::vector<Type> DispatchGradInfer(const OpContext& c) {
  return {TokensLike(c, 0), MakeType(Dtype::kF32, c.Extents(1))};
}

/// Rows, places.
Einsum CombineEinsum(const OpContext&) { return {{"bskd", "bsk"}, {"bsd"}, "bs"}; }
std::vector<Type> CombineInfer(const OpContext& c) { return {TokensLike(c, 0)}; }
void CombineGradient(GradientBuilder& g) { g.Emit(OpKind::kCombineGrad, {g.Adjoint(0), g.Input(1)}, {}, {0}); }

/// The adjoint of y, places.
Einsum CombineGradEinsum(const OpContext&) { return {{"bsd", "bsk"}, {"bskd"}, "bs"}; }
std::vector<Type> CombineGradInfer(const OpContext& c) {
  return {MakeType(c.ElementType(0), WithWidth(c.Extents(1), c.Extents(0).at(2)))};
}

}  // namespace

OpDefinition Dispatch() {
  return {.summary = "a row for each expert of each token, in the order of experts; its weight, expert and place",
          .einsum = DispatchEinsum,
          .infer = DispatchInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = DispatchGradient};
}
OpDefinition DispatchGrad() {
  return {.summary = "adjoint of dispatch in tokens and weights",
          .einsum = DispatchGradEinsum,
          .infer = DispatchGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition Combine() {
  return {.summary = "the sum of the rows of each token",
          .einsum = CombineEinsum,
          .infer = CombineInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = CombineGradient};
}
OpDefinition CombineGrad() {
  return {.summary = "adjoint of combine in the rows",
          .einsum = CombineGradEinsum,
          .infer = CombineGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}

}  // namespace espalier
