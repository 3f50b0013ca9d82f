// The router of a mixture of experts: each token is served by the k experts with the highest scores, in the order of
// their scores. Among equal scores the lower number wins. With scores s of E logits, softmax of all (Shazeer et al.
// 2017, eq. 4) or sigmoid of each (DeepSeek-V3, eq. 15), the weight of a chosen expert i is
//
//   scale s_i,  or with `normalize`  scale s_i / (sum of the chosen s)
//
// With a bias of each expert the choice is by s + bias, the weights are not (DeepSeek-V3, eq. 16). With `groups`
// experts are chosen from the `top_groups` groups whose `group_best` highest values of s + bias, two (DeepSeek-V3) or
// one (DeepSeek-V2, section 2.1.3), have the largest sums. The choice has no gradient; the weights pass theirs to the
// logits. With `balanced` a token's position p, the last input, chooses: the k experts from p k on, modulo E, so that
// all serve equally many tokens.
//
// expert_load counts how often each expert is chosen in a step, and concatenate puts the counts of all layers side by
// side, for the metrics. The bias is a state that no gradient trains: bias_update adds `rate` to the biases of experts
// that were chosen less often than the mean, and subtracts it from the others'.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum RouteEinsum(const OpContext& c) {
  Einsum einsum{{"bse"}, {"bsk", "bsk"}, "bs"};
  const bool balanced = c.op.attributes.NumberOr("balanced", 0) != 0;
  if (c.inputs.size() > (balanced ? 2 : 1)) einsum.inputs.emplace_back("e");
  if (balanced) einsum.inputs.emplace_back("s");
  return einsum;
}
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

Einsum LoadEinsum(const OpContext&) { return {{"bsk"}, {"e"}, "bs"}; }
std::vector<Type> LoadInfer(const OpContext& c) {
  return {MakeType(Dtype::kF32, {c.op.attributes.Integer("experts")})};
}

Einsum ConcatenateEinsum(const OpContext& c) {
  Einsum einsum{{}, {"z"}, ""};
  for (const Type& input : c.inputs) einsum.inputs.push_back(DimsOfRank(input.shape.size()));
  return einsum;
}
std::vector<Type> ConcatenateInfer(const OpContext& c) {
  int64_t elements = 0;
  for (size_t i = 0; i < c.inputs.size(); ++i) elements += Volume(c.Extents(i));
  return {MakeType(Dtype::kF32, {elements})};
}

/// apply, bias, load. A rank may update a part of the biases; the mean is of all loads.
Einsum BiasUpdateEinsum(const OpContext&) { return {{"", "e", "f"}, {"e"}, "e"}; }
std::vector<Type> BiasUpdateInfer(const OpContext& c) { return {MakeType(Dtype::kF32, c.Extents(1))}; }

}  // namespace

OpDefinition ExpertLoad() {
  return {.summary = "how often each expert was chosen",
          .einsum = LoadEinsum,
          .infer = LoadInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .accumulates = true};
}
OpDefinition Concatenate() {
  return {.summary = "the elements of all inputs, one after the other",
          .einsum = ConcatenateEinsum,
          .infer = ConcatenateInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition BiasUpdate() {
  return {.summary = "moves the biases of a router towards equal loads",
          .einsum = BiasUpdateEinsum,
          .infer = BiasUpdateInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
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
