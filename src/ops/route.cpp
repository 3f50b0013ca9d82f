// The router of a mixture of experts: each token is served by the k experts with the highest scores, in the order of
// their scores; of equal scores the lower number wins. With scores s of E logits, softmax of all (Shazeer et al. 2017,
// eq. 4) or sigmoid of each (DeepSeek-V3, eq. 15), the weight of a chosen expert i is
//
//   scale s_i,  or with `normalize`  scale s_i / (sum of the chosen s)
//
// The choice has no gradient; that of the weights goes to the logits.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum RouteEinsum(const OpContext&) { return {{"bse"}, {"bsk", "bsk"}, "bs"}; }
std::vector<Type> RouteInfer(const OpContext& c) {
  const Shape& logits = c.Extents(0);
  const Shape chosen = {logits.at(0), logits.at(1), c.op.attributes.Integer("per_token")};
  return {MakeType(Dtype::kF32, chosen), MakeType(Dtype::kI32, chosen)};
}
void RouteGradient(GradientBuilder& g) {
  g.Emit(OpKind::kRouteGrad, {g.Input(0), g.Output(1), g.Adjoint(0)}, g.ForwardAttributes(), {0});
}

Einsum RouteGradEinsum(const OpContext&) { return {{"bse", "bsk", "bsk"}, {"bse"}, "bs"}; }
std::vector<Type> RouteGradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

}  // namespace

OpDefinition Route() {
  return {.summary = "weights and numbers of the experts that serve each token",
          .einsum = RouteEinsum,
          .infer = RouteInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = RouteGradient};
}
OpDefinition RouteGrad() {
  return {.summary = "adjoint of route in the logits",
          .einsum = RouteGradEinsum,
          .infer = RouteGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}

}  // namespace espalier
