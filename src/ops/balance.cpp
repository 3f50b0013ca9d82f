// Losses that keep the router of a mixture of experts in balance. For a sequence of S tokens, E experts and k experts
// per token, with f_e = E / (k S) times how often expert e was chosen, and P_e its mean score (sigmoid scores are
// divided by the sum of a token's first), the balance loss is c sum over e of f_e P_e (DeepSeek-V3, eq. 17 to 20; Fedus
// et al. 2021, eq. 4). It is c where all experts are chosen equally often. The router's z-loss is c log(sum of
// exp(logits))^2 of each token (Zoph et al. 2022, eq. 5).
//
//   sums, counts, squares = balance(logits, chosen)        over the tokens of each sequence
//   balance_loss, z_loss  = router_loss(sums, counts, squares)
//   entropy               = router_entropy(logits)         over all tokens, for the metrics
//
// Losses are sums over tokens, like the cross-entropy: a sequence counts S times. So the factor of counts sums is
// c E / (k S), the attribute `balance`. The choice has no gradient, and the adjoint of a sum of scores is its count.
// The entropy of a token is - sum over e of p_e log(p_e), p_e its scores divided by their sum.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum BalanceEinsum(const OpContext&) { return {{"bse", "bsk"}, {"be", "be", "b"}, "bs"}; }
std::vector<Type> BalanceInfer(const OpContext& c) {
  const Shape& logits = c.Extents(0);
  const Type by_expert = MakeType(Dtype::kF32, {logits.at(0), logits.at(2)});
  return {by_expert, by_expert, MakeType(Dtype::kF32, {logits.at(0)})};
}
void BalanceGradient(GradientBuilder& g) {
  g.Emit(OpKind::kBalanceGrad, {g.Input(0), g.Adjoint(0)}, g.ForwardAttributes(), {0});
}

Einsum BalanceGradEinsum(const OpContext&) { return {{"bse", "be"}, {"bse"}, "bs"}; }
std::vector<Type> BalanceGradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

Einsum LossesEinsum(const OpContext&) { return {{"be", "be", "b"}, {"", ""}, "b"}; }
std::vector<Type> LossesInfer(const OpContext&) { return std::vector(2, MakeType(Dtype::kF32, {})); }
void LossesGradient(GradientBuilder& g) {
  g.Pass(0, g.Input(1));
  g.Pass(2, GradientBuilder::kSeed);
}

Einsum EntropyEinsum(const OpContext&) { return {{"bse"}, {""}, "bs"}; }
std::vector<Type> EntropyInfer(const OpContext&) { return {MakeType(Dtype::kF32, {})}; }

}  // namespace

OpDefinition Balance() {
  return {.summary = "sums of scores and choices of each expert over a sequence, and of squared log denominators",
          .einsum = BalanceEinsum,
          .infer = BalanceInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = BalanceGradient};
}
OpDefinition BalanceGrad() {
  return {.summary = "adjoint of the losses of a router in its logits",
          .einsum = BalanceGradEinsum,
          .infer = BalanceGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition RouterLoss() {
  return {.summary = "balance loss and z-loss of a router, summed over tokens",
          .einsum = LossesEinsum,
          .infer = LossesInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = LossesGradient,
          .accumulates = true,
          .is_loss = true};
}
OpDefinition RouterEntropy() {
  return {.summary = "entropy of a router's scores, summed over tokens",
          .einsum = EntropyEinsum,
          .infer = EntropyInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .accumulates = true};
}

}  // namespace espalier
