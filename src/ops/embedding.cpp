// Rows of a table by token id, and the gradient that adds rows back. A sharded vocabulary gives partial sums: ids of
// other ranks' rows yield zeros.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters ForwardLetters(const OpContext&) { return {{"bs", "vd"}, {"bsd"}, "bsv"}; }
std::vector<Type> ForwardInfer(const OpContext& c) {
  return {MakeType(c.ElementType(1), {c.Extents(0)[0], c.Extents(0)[1], c.Extents(1)[1]})};
}
void Gradient(GradientBuilder& g) {
  Attributes attributes = g.ForwardAttributes();
  g.Emit("embedding_grad", {g.Input(0), g.Adjoint(0)}, attributes, {1});
}

Letters BackwardLetters(const OpContext&) { return {{"bs", "bsd"}, {"vd"}, "bsv"}; }
std::vector<Type> BackwardInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {static_cast<int64_t>(c.op.attributes.Number("vocab")), c.Extents(1)[2]})};
}

}  // namespace

OpDefinition Embedding() {
  return {.kind = "embedding",
          .summary = "rows of a table by token id",
          .letters = ForwardLetters,
          .infer = ForwardInfer,
          .gradient = Gradient};
}
OpDefinition EmbeddingGrad() {
  return {.kind = "embedding_grad",
          .summary = "adjoint of embedding: rows added up by token id",
          .letters = BackwardLetters,
          .infer = BackwardInfer};
}

}  // namespace espalier
