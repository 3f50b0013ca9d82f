// RMSNorm (Zhang and Sennrich 2019, eq. 4): y = w x / sqrt(mean(x^2) + eps), fp32 inside. Input and weight gradients
// are separate ops, so that schedules can separate them. With an addend a (pass `fuse`), forward normalises h = x + a
// and also outputs h; the input gradient is added to a. rms_norm_backward is both gradients in one pass over x and dy
// (pass `fuse_norm_gradients`).
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum RmsNormEinsum(const OpContext& c) {
  if (c.inputs.size() == 3) return {{"bsd", "d", "bsd"}, {"bsd", "bs", "bsd"}, "bs"};
  return {{"bsd", "d"}, {"bsd", "bs"}, "bs"};
}
std::vector<Type> RmsNormInfer(const OpContext& c) {
  const Type y = MakeType(c.ElementType(0), c.Extents(0)), row = MakeType(Dtype::kF32, {y.shape[0], y.shape[1]});
  return c.inputs.size() == 3 ? std::vector{y, row, y} : std::vector{y, row};
}
void RmsNormGradient(GradientBuilder& g) {
  const int x = g.Input(0), w = g.Input(1), rstd = g.Output(1), dy = g.Adjoint(0);
  g.Emit(OpKind::kRmsNormGrad, {x, w, rstd, dy}, {}, {0});
  g.Emit(OpKind::kRmsNormWeightGrad, {x, rstd, dy}, {}, {1});
}

Einsum RmsNormInputGradEinsum(const OpContext& c) {
  if (c.inputs.size() == 5) return {{"bsd", "d", "bs", "bsd", "bsd"}, {"bsd"}, "bs"};
  return {{"bsd", "d", "bs", "bsd"}, {"bsd"}, "bs"};
}
std::vector<Type> RmsNormInputGradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

Einsum RmsNormWeightGradEinsum(const OpContext&) { return {{"bsd", "bs", "bsd"}, {"d"}, "bs"}; }
std::vector<Type> RmsNormWeightGradInfer(const OpContext& c) { return {MakeType(Dtype::kF32, {c.Extents(0)[2]})}; }

Einsum RmsNormGradEinsum(const OpContext& c) {
  Einsum einsum = RmsNormInputGradEinsum(c);
  einsum.outputs.emplace_back("d");
  return einsum;
}
std::vector<Type> RmsNormGradInfer(const OpContext& c) {
  return {RmsNormInputGradInfer(c)[0], MakeType(Dtype::kF32, {c.Extents(0)[2]})};
}

}  // namespace

OpDefinition RmsNorm() {
  return {.summary = "root-mean-square normalisation over the last dim, times a weight",
          .einsum = RmsNormEinsum,
          .infer = RmsNormInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = RmsNormGradient,
          .in_place = {{2, 2}, {2, 0}}};
}
OpDefinition RmsNormGrad() {
  return {.summary = "adjoint of rms_norm in its input",
          .einsum = RmsNormInputGradEinsum,
          .infer = RmsNormInputGradInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 4}}};
}
OpDefinition RmsNormWeightGrad() {
  return {.summary = "adjoint of rms_norm in its weight",
          .einsum = RmsNormWeightGradEinsum,
          .infer = RmsNormWeightGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition RmsNormBackward() {
  return {.summary = "fused rms_norm_grad and rms_norm_weight_grad",
          .einsum = RmsNormGradEinsum,
          .infer = RmsNormGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 4}}};
}

}  // namespace espalier
