// Rows of a table by token id, and the gradient, which adds rows by token id. A sharded vocabulary gives partial sums:
// ids of rows on other ranks yield zeros.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum EmbeddingEinsum(const OpContext&) { return {{"bs", "vd"}, {"bsd"}, "bsv"}; }
std::vector<Type> EmbeddingInfer(const OpContext& c) {
  return {MakeType(c.ElementType(1), {c.Extents(0)[0], c.Extents(0)[1], c.Extents(1)[1]})};
}
void EmbeddingGradient(GradientBuilder& g) {
  Attributes attributes = g.ForwardAttributes();
  g.Emit(OpKind::kEmbeddingGrad, {g.Input(0), g.Adjoint(0)}, attributes, {1});
}
/// Only the tokens' rows of the table are read.
double EmbeddingBytes(const LocalOp& op, bool) { return 2 * OutputBytes(op) + InputBytes(op, 0); }

Einsum EmbeddingGradEinsum(const OpContext&) { return {{"bs", "bsd"}, {"vd"}, "bsv"}; }
std::vector<Type> EmbeddingGradInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.op.attributes.Integer("vocab"), c.Extents(1)[2]})};
}

}  // namespace

OpDefinition Embedding() {
  return {.summary = "rows of a table by token id",
          .einsum = EmbeddingEinsum,
          .infer = EmbeddingInfer,
          .kernel = {.rows = Rows::kTogether, .work = EmbeddingBytes, .key = kNoAttributes},
          .gradient = EmbeddingGradient};
}
OpDefinition EmbeddingGrad() {
  return {.summary = "adjoint of embedding: rows added up by token id",
          .einsum = EmbeddingGradEinsum,
          .infer = EmbeddingGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = AddedRowsBytes, .key = kNoAttributes}};
}

}  // namespace espalier
