// Learned positions (Radford et al. 2019): each token adds the row of a table for its position. The position is a
// value, not the local index, so a sequence can be sharded and reordered among ranks. Positions are [s], the same in
// all sequences, or [b, s], where they start again inside a sequence. The table itself is replicated where it is read.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

std::string PositionDims(const OpContext& c, int input) { return c.Extents(input).size() == 2 ? "bs" : "s"; }

Einsum PositionEmbeddingEinsum(const OpContext& c) { return {{"bsd", PositionDims(c, 1), "pd"}, {"bsd"}, "bs"}; }
std::vector<Type> PositionEmbeddingInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void PositionEmbeddingGradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit(OpKind::kPositionEmbeddingGrad, {g.Input(1), g.Adjoint(0)}, g.ForwardAttributes(), {2});
}
/// One row of the table is read per row of x.
double PositionEmbeddingBytes(const LocalOp& op, bool) { return 3 * OutputBytes(op); }

Einsum PositionEmbeddingGradEinsum(const OpContext& c) { return {{PositionDims(c, 0), "bsd"}, {"pd"}, "bs"}; }
std::vector<Type> PositionEmbeddingGradInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.op.attributes.Integer("positions"), c.Extents(1)[2]})};
}

}  // namespace

OpDefinition PositionEmbedding() {
  return {.summary = "adds the row of a table by each token's position",
          .einsum = PositionEmbeddingEinsum,
          .infer = PositionEmbeddingInfer,
          .kernel = {.rows = Rows::kTogether, .work = PositionEmbeddingBytes, .key = kNoAttributes},
          .gradient = PositionEmbeddingGradient,
          .in_place = {{0, 0}}};
}
OpDefinition PositionEmbeddingGrad() {
  return {.summary = "adjoint of position_embedding in its table: rows added up by position",
          .einsum = PositionEmbeddingGradEinsum,
          .infer = PositionEmbeddingGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = AddedRowsBytes, .key = kNoAttributes}};
}

}  // namespace espalier
