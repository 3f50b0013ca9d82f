// RMSNorm of queries and keys in two steps (Zhang and Sennrich 2019, eq. 4): the sum of squares s of each row, then
// y = w x / sqrt(s / width + eps). Rows that tp shards are norms over the ranks of tp: only s, one number per token, is
// reduced. With the attribute `head_dim` each head is a row of its own (Qwen3), else all heads together are (OLMo 2).
// The gradient goes the same way back: through s to x, and past s to x.
//
//   ds = -rstd^3 sum(dy w x) / (2 width),  dx = w dy rstd + 2 x ds,  rstd = 1 / sqrt(s / width + eps)
//
// The adjoint is the first input: for keys it is a partial sum over ranks that share them, and all is linear in it.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

int64_t HeadDim(const OpContext& c) { return c.op.attributes.IntegerOr("head_dim", 0); }
/// Einsum of the sums, and of a weight.
std::string SumDims(const OpContext& c) { return HeadDim(c) > 0 ? "bsh" : "bs"; }
std::string WeightDims(const OpContext& c) { return HeadDim(c) > 0 ? "e" : "h"; }

/// Sums of the rows of input `x`.
Type SumType(const OpContext& c, int x) {
  const Shape& rows = c.Extents(x);
  return MakeType(Dtype::kF32,
                  HeadDim(c) > 0 ? Shape{rows[0], rows[1], rows[2] / HeadDim(c)} : Shape{rows[0], rows[1]});
}
std::vector<Type> LikeInput(const OpContext& c, int x) { return {MakeType(c.ElementType(x), c.Extents(x))}; }

Einsum SquaresEinsum(const OpContext& c) { return {{"bsh"}, {SumDims(c)}, "bsh"}; }
std::vector<Type> SquaresInfer(const OpContext& c) { return {SumType(c, 0)}; }
void SquaresGradient(GradientBuilder& g) {
  g.Emit(OpKind::kRowSquaresGrad, {g.Adjoint(0), g.Input(0)}, g.ForwardAttributes(), {0});
}
Einsum SquaresGradEinsum(const OpContext& c) { return {{SumDims(c), "bsh"}, {"bsh"}, "bsh"}; }
std::vector<Type> SquaresGradInfer(const OpContext& c) { return LikeInput(c, 1); }

Einsum NormEinsum(const OpContext& c) { return {{"bsh", WeightDims(c), SumDims(c)}, {"bsh"}, "bsh"}; }
std::vector<Type> NormInfer(const OpContext& c) { return LikeInput(c, 0); }
void NormGradient(GradientBuilder& g) {
  const int x = g.Input(0), w = g.Input(1), s = g.Input(2), dy = g.Adjoint(0);
  g.Emit(OpKind::kRowNormGrad, {dy, w, s}, g.ForwardAttributes(), {0});
  g.Emit(OpKind::kRowNormSquaresGrad, {dy, x, w, s}, g.ForwardAttributes(), {2});
  g.Emit(OpKind::kRowNormWeightGrad, {dy, x, s}, g.ForwardAttributes(), {1});
}

Einsum SquaresOfNormEinsum(const OpContext& c) {
  return {{"bsh", "bsh", WeightDims(c), SumDims(c)}, {SumDims(c)}, "bsh"};
}
std::vector<Type> SquaresOfNormInfer(const OpContext& c) { return {SumType(c, 1)}; }

Einsum RowNormWeightGradEinsum(const OpContext& c) { return {{"bsh", "bsh", SumDims(c)}, {WeightDims(c)}, "bsh"}; }
std::vector<Type> RowNormWeightGradInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {HeadDim(c) > 0 ? HeadDim(c) : c.Extents(0)[2]})};
}

}  // namespace

OpDefinition RowSquares() {
  return {.summary = "sum of squares of each row, or of each head",
          .einsum = SquaresEinsum,
          .infer = SquaresInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .gradient = SquaresGradient};
}
OpDefinition RowSquaresGrad() {
  return {.summary = "adjoint of row_squares",
          .einsum = SquaresGradEinsum,
          .infer = SquaresGradInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .in_place = {{0, 1}},
          .linear_inputs = 1};
}
OpDefinition RowNorm() {
  return {.summary = "root-mean-square normalisation by given sums of squares, times a weight",
          .einsum = NormEinsum,
          .infer = NormInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .gradient = NormGradient,
          .in_place = {{0, 0}}};
}
OpDefinition RowNormGrad() {
  return {.summary = "adjoint of row_norm in its input, for given sums of squares",
          .einsum = NormEinsum,
          .infer = NormInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .in_place = {{0, 0}},
          .linear_inputs = 1};
}
OpDefinition RowNormSquaresGrad() {
  return {.summary = "adjoint of row_norm in the sums of squares",
          .einsum = SquaresOfNormEinsum,
          .infer = SquaresOfNormInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .linear_inputs = 1};
}
OpDefinition RowNormWeightGrad() {
  return {.summary = "adjoint of row_norm in its weight",
          .einsum = RowNormWeightGradEinsum,
          .infer = RowNormWeightGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .linear_inputs = 1};
}

}  // namespace espalier
