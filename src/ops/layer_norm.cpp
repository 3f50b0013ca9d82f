// LayerNorm (Ba et al. 2016, eq. 4): y = w (x - mean) / sqrt(var + eps) + b over the last dim, fp32 inside. Input and
// weight gradients are separate ops, so that schedules can separate them; dw and db read the same rows and are computed
// together. An addend works as in rms_norm.cpp.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum LayerNormEinsum(const OpContext& c) {
  if (c.inputs.size() == 4) return {{"bsd", "d", "d", "bsd"}, {"bsd", "bs", "bs", "bsd"}, "bs"};
  return {{"bsd", "d", "d"}, {"bsd", "bs", "bs"}, "bs"};
}
std::vector<Type> LayerNormInfer(const OpContext& c) {
  const Type y = MakeType(c.ElementType(0), c.Extents(0)), row = MakeType(Dtype::kF32, {y.shape[0], y.shape[1]});
  return c.inputs.size() == 4 ? std::vector{y, row, row, y} : std::vector{y, row, row};
}
void LayerNormGradient(GradientBuilder& g) {
  const int x = g.Input(0), w = g.Input(1), mean = g.Output(1), rstd = g.Output(2), dy = g.Adjoint(0);
  g.Emit(OpKind::kLayerNormGrad, {x, w, mean, rstd, dy}, {}, {0});
  g.Emit(OpKind::kLayerNormWeightGrad, {x, mean, rstd, dy}, {}, {1, 2});
}

Einsum LayerNormInputGradEinsum(const OpContext& c) {
  if (c.inputs.size() == 6) return {{"bsd", "d", "bs", "bs", "bsd", "bsd"}, {"bsd"}, "bs"};
  return {{"bsd", "d", "bs", "bs", "bsd"}, {"bsd"}, "bs"};
}
std::vector<Type> LayerNormInputGradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

Einsum LayerNormWeightGradEinsum(const OpContext&) { return {{"bsd", "bs", "bs", "bsd"}, {"d", "d"}, "bs"}; }
std::vector<Type> LayerNormWeightGradInfer(const OpContext& c) {
  return std::vector(2, MakeType(Dtype::kF32, {c.Extents(0)[2]}));
}

Einsum LayerNormGradEinsum(const OpContext& c) {
  Einsum einsum = LayerNormInputGradEinsum(c);
  einsum.outputs.insert(einsum.outputs.end(), {"d", "d"});
  return einsum;
}
std::vector<Type> LayerNormGradInfer(const OpContext& c) {
  const Type weight = MakeType(Dtype::kF32, {c.Extents(0)[2]});
  return {LayerNormInputGradInfer(c)[0], weight, weight};
}

}  // namespace

OpDefinition LayerNorm() {
  return {.summary = "normalisation over the last dim to mean 0 and variance 1, times a weight, plus a bias",
          .einsum = LayerNormEinsum,
          .infer = LayerNormInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = LayerNormGradient,
          .in_place = {{3, 3}, {3, 0}}};
}
OpDefinition LayerNormGrad() {
  return {.summary = "adjoint of layer_norm in its input",
          .einsum = LayerNormInputGradEinsum,
          .infer = LayerNormInputGradInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 5}}};
}
OpDefinition LayerNormWeightGrad() {
  return {.summary = "adjoint of layer_norm in its weight and bias",
          .einsum = LayerNormWeightGradEinsum,
          .infer = LayerNormWeightGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition LayerNormBackward() {
  return {.summary = "fused layer_norm_grad and layer_norm_weight_grad",
          .einsum = LayerNormGradEinsum,
          .infer = LayerNormGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 5}}};
}

}  // namespace espalier
