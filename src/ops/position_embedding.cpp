// Learned positions (Radford et al. 2019): the row of a table is added to each token by the value of its position,
// never by its index here, so that a sequence may be cut and reordered among ranks. The table itself is never cut while
// it is read.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters ForwardLetters(const OpContext&) { return {{"bsd", "s", "pd"}, {"bsd"}, "bs"}; }
std::vector<Type> ForwardInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void Gradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit("position_embedding_grad", {g.Input(1), g.Adjoint(0)}, g.ForwardAttributes(), {2});
}

Letters BackwardLetters(const OpContext&) { return {{"s", "bsd"}, {"pd"}, "bs"}; }
std::vector<Type> BackwardInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {static_cast<int64_t>(c.op.attributes.Number("positions")), c.Extents(1)[2]})};
}

}  // namespace

OpDefinition PositionEmbedding() {
  return {.kind = "position_embedding",
          .summary = "adds the row of a table by each token's position",
          .letters = ForwardLetters,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .in_place = {{0, 0}}};
}
OpDefinition PositionEmbeddingGrad() {
  return {.kind = "position_embedding_grad",
          .summary = "adjoint of position_embedding in its table: rows added up by position",
          .letters = BackwardLetters,
          .infer = BackwardInfer};
}

}  // namespace espalier
