// Attention sinks (gpt-oss; Miller 2023, "Attention is off by one"): each query head has a learned logit in the
// denominator of its softmax, for a key without a value. Attention itself knows nothing of it: its results are scaled.
//
//   o0, lse0 = attention(q, k, v)                    lse = log(exp(lse0) + exp(sink))
//   o, lse = attention_sink(o0, lse0, sinks)         o = o0 exp(lse0 - lse)
//
// Probabilities are exp(score - lse), so attention_grad with these o and lse (OpDefinition::completes) is the gradient
// of both: a score's is p (dO . v - dO . o), as without a sink. The sink's probability has no value, so its
// gradient is the sum over queries of - exp(sink - lse) (dO . o).
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum SinkEinsum(const OpContext&) { return {{"bsh", "bhs", "h"}, {"bsh", "bhs"}, "bsh"}; }
std::vector<Type> SinkInfer(const OpContext& c) {
  return {MakeType(c.ElementType(0), c.Extents(0)), MakeType(Dtype::kF32, c.Extents(1))};
}
void SinkGradient(GradientBuilder& g) {
  g.Pass(0, g.Adjoint(0));
  g.Emit(OpKind::kAttentionSinkGrad, {g.Output(1), g.Input(2), g.Output(0), g.Adjoint(0)}, g.ForwardAttributes(), {2});
}

/// lse, sinks, o, dO.
Einsum SinkGradEinsum(const OpContext&) { return {{"bhs", "h", "bsh", "bsh"}, {"h"}, "bsh"}; }
std::vector<Type> SinkGradInfer(const OpContext& c) { return {MakeType(Dtype::kF32, c.Extents(1))}; }

}  // namespace

OpDefinition AttentionSink() {
  return {.summary = "the results of attention with a logit of each head in the denominators",
          .einsum = SinkEinsum,
          .infer = SinkInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("head_dim")},
          .gradient = SinkGradient,
          .in_place = {{0, 0}, {1, 1}},
          .completes = true};
}
OpDefinition AttentionSinkGrad() {
  return {.summary = "adjoint of attention_sink in the sinks",
          .einsum = SinkGradEinsum,
          .infer = SinkGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("head_dim")}};
}

}  // namespace espalier
