// The SwiGLU gate (Shazeer 2020, eq. 6) of rows of experts, which have a weight each: y = weight silu(gate) up. The
// down projection that follows is linear, so a weight here is one of its result; but what it makes need not be kept for
// the gradient of the weight. Rows without an expert are left out. With `limit` it is the form of gpt-oss: y = weight
// (up + 1) gate sigmoid(1.702 gate), the gate at most `limit` and up within plus and minus `limit`.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

/// Gate, up, weights and experts of the rows.
Einsum WeightedEinsum(const OpContext&) { return {{"ebsn", "ebsn", "ebs", "ebs"}, {"ebsn"}, "ebs", Reduce::kSum, "e"}; }
std::vector<Type> WeightedInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void WeightedGradient(GradientBuilder& g) {
  g.Emit(OpKind::kWeightedSwigluGrad, {g.Input(0), g.Input(1), g.Input(2), g.Adjoint(0), g.Input(3)},
         g.ForwardAttributes(), {0, 1, 2});
}

Einsum WeightedGradEinsum(const OpContext&) {
  return {{"ebsn", "ebsn", "ebs", "ebsn", "ebs"}, {"ebsn", "ebsn", "ebs"}, "ebs", Reduce::kSum, "e"};
}
std::vector<Type> WeightedGradInfer(const OpContext& c) {
  const Type gate = MakeType(c.ElementType(0), c.Extents(0));
  return {gate, gate, MakeType(Dtype::kF32, c.Extents(2))};
}

}  // namespace

OpDefinition WeightedSwiglu() {
  return {.summary = "silu(gate) times up, or its form with limits, times the weight of the row",
          .einsum = WeightedEinsum,
          .infer = WeightedInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows},
          .gradient = WeightedGradient};
}
OpDefinition WeightedSwigluGrad() {
  return {.summary = "adjoint of weighted_swiglu in gate, up and weights",
          .einsum = WeightedGradEinsum,
          .infer = WeightedGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = FilledRowsOnce, .key = kKeyOfRows},
          .in_place = {{0, 3}, {0, 0}}};
}

}  // namespace espalier
