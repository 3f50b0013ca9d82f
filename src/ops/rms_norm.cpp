// RMSNorm (Zhang and Sennrich 2019, eq. 4): y = w x / sqrt(mean(x^2) + eps), fp32 inside. Input and weight gradients
// are ops of their own, so that schedules may run them apart. Given an addend a, which the pass `fuse` brings, forward
// normalises h = x + a and makes h too, and the input gradient is added to a.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters ForwardLetters(const OpContext& c) {
  if (c.inputs.size() == 3) return {{"bsd", "d", "bsd"}, {"bsd", "bs", "bsd"}, "bs"};
  return {{"bsd", "d"}, {"bsd", "bs"}, "bs"};
}
std::vector<Type> ForwardInfer(const OpContext& c) {
  const Type y = MakeType(c.ElementType(0), c.Extents(0)), row = MakeType(Dtype::kF32, {y.shape[0], y.shape[1]});
  return c.inputs.size() == 3 ? std::vector{y, row, y} : std::vector{y, row};
}
void Gradient(GradientBuilder& g) {
  const int x = g.Input(0), w = g.Input(1), rstd = g.Output(1), dy = g.Adjoint(0);
  g.Emit("rms_norm_grad", {x, w, rstd, dy}, {}, {0});
  g.Emit("rms_norm_weight_grad", {x, rstd, dy}, {}, {1});
}

Letters InputGradLetters(const OpContext& c) {
  if (c.inputs.size() == 5) return {{"bsd", "d", "bs", "bsd", "bsd"}, {"bsd"}, "bs"};
  return {{"bsd", "d", "bs", "bsd"}, {"bsd"}, "bs"};
}
std::vector<Type> InputGradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

Letters WeightGradLetters(const OpContext&) { return {{"bsd", "bs", "bsd"}, {"d"}, "bs"}; }
std::vector<Type> WeightGradInfer(const OpContext& c) { return {MakeType(Dtype::kF32, {c.Extents(0)[2]})}; }

}  // namespace

OpDefinition RmsNorm() {
  return {.kind = "rms_norm",
          .summary = "root-mean-square normalisation over the last dim, times a weight",
          .letters = ForwardLetters,
          .infer = ForwardInfer,
          .gradient = Gradient,
          .in_place = {{2, 2}, {2, 0}}};
}
OpDefinition RmsNormGrad() {
  return {.kind = "rms_norm_grad",
          .summary = "adjoint of rms_norm in its input",
          .letters = InputGradLetters,
          .infer = InputGradInfer,
          .in_place = {{0, 4}}};
}
OpDefinition RmsNormWeightGrad() {
  return {.kind = "rms_norm_weight_grad",
          .summary = "adjoint of rms_norm in its weight",
          .letters = WeightGradLetters,
          .infer = WeightGradInfer};
}

}  // namespace espalier
