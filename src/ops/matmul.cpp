// Products of activations and weights. One op, three letterings: y = x W^T, dx = dy W, dW = dy^T x (weights are [out, in]).
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

constexpr std::string_view kForward = "bsk,nk->bsn";
constexpr std::string_view kInputGradient = "bsn,nk->bsk";
constexpr std::string_view kWeightGradient = "bsn,bsk->nk";

Attributes Spec(std::string_view spec) { return {{}, {{"spec", std::string(spec)}}}; }

Letters MatmulLetters(const OpContext& c) {
  const std::string& spec = c.op.attributes.Text("spec");
  const size_t comma = spec.find(','), arrow = spec.find("->");
  return {{spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1)}, {spec.substr(arrow + 2)}, "bsnk"};
}

std::vector<Type> Infer(const OpContext& c) {
  const Shape& a = c.Extents(0);
  const Shape& b = c.Extents(1);
  const std::string& spec = c.op.attributes.Text("spec");
  if (spec == kForward) return {MakeType(c.ElementType(0), {a[0], a[1], b[0]})};
  if (spec == kInputGradient) return {MakeType(c.ElementType(0), {a[0], a[1], b[1]})};
  CHECK(spec == kWeightGradient, "matmul: unknown spec {}", spec);
  return {MakeType(Dtype::kF32, {a[2], b[2]})};
}

void Gradient(GradientBuilder& g) {
  CHECK(g.ForwardAttributes().Text("spec") == kForward, "only the forward product has a gradient");
  g.Emit("matmul", {g.Adjoint(0), g.Input(1)}, Spec(kInputGradient), {0});
  g.Emit("matmul", {g.Adjoint(0), g.Input(0)}, Spec(kWeightGradient), {1});
}

/// 2 M N K: each element of the output is a dot product over the contracted letters.
double Flops(const LocalOp& c) {
  const bool weight_gradient = c.op.attributes.Text("spec") == kWeightGradient;
  const double contracted = weight_gradient ? double(c.inputs[0][0]) * double(c.inputs[0][1]) : double(c.inputs[0][2]);
  return 2.0 * double(Volume(c.outputs[0])) * contracted;
}

}  // namespace

OpDefinition Matmul() {
  return {.kind = "matmul", .summary = "product with a weight, lettered by `spec`", .letters = MatmulLetters,
          .infer = Infer, .gradient = Gradient, .flops = Flops};
}

}  // namespace espalier
