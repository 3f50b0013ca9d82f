// Products of activations and weights. One op, and three letterings for each way to store a weight: y = x W^T, dx = dy
// W, dW = dy^T x for [out, in] ("bsk,nk->bsn": Llama's), y = x W, dx = dy W^T, dW = x^T dy for [in, out]
// ("bsk,kn->bsn": GPT-2's). A third input, which the pass `fuse` brings, is a bias that is added to every row.
#include <map>

#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Attributes Spec(const std::string& a, const std::string& b, const std::string& c) {
  return {{}, {{"spec", a + "," + b + "->" + c}}};
}

Letters LettersOf(const std::string& spec) {
  const size_t comma = spec.find(','), arrow = spec.find("->");
  return {{spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1)}, {spec.substr(arrow + 2)}, "bsnk"};
}
Letters MatmulLetters(const OpContext& c) {
  Letters letters = LettersOf(c.op.attributes.Text("spec"));
  if (c.inputs.size() == 3) letters.inputs.push_back(letters.outputs[0].substr(2));
  return letters;
}

/// A product of tokens with tokens makes a weight gradient, in fp32.
bool MakesWeightGradient(const Letters& letters) { return letters.outputs[0].size() == 2; }

std::vector<Type> Infer(const OpContext& c) {
  const Letters letters = MatmulLetters(c);
  std::map<char, int64_t> extents;
  for (size_t i = 0; i < 2; ++i)
    for (size_t d = 0; d < letters.inputs[i].size(); ++d)
      extents[letters.inputs[i][d]] = c.Extents(static_cast<int>(i))[d];
  Shape shape;
  for (char letter : letters.outputs[0]) shape.push_back(extents.at(letter));
  return {MakeType(MakesWeightGradient(letters) ? Dtype::kF32 : c.ElementType(0), std::move(shape))};
}

void Gradient(GradientBuilder& g) {
  const Letters letters = LettersOf(g.ForwardAttributes().Text("spec"));
  CHECK(!MakesWeightGradient(letters), "only the forward product has a gradient");
  const std::string &x = letters.inputs[0], &w = letters.inputs[1], &y = letters.outputs[0];
  const int dy = g.Adjoint(0);
  g.Emit("matmul", {dy, g.Input(1)}, Spec(y, w, x), {0});
  if (w[0] == y[2])
    g.Emit("matmul", {dy, g.Input(0)}, Spec(y, x, w), {1});
  else
    g.Emit("matmul", {g.Input(0), dy}, Spec(x, y, w), {1});
}

/// 2 M N K: each element of the output is a dot product over the contracted letters.
double Flops(const LocalOp& c) {
  const bool weight_gradient = c.outputs[0].size() == 2;
  const double contracted = weight_gradient ? double(c.inputs[0][0]) * double(c.inputs[0][1]) : double(c.inputs[0][2]);
  return 2.0 * double(Volume(c.outputs[0])) * contracted;
}

}  // namespace

OpDefinition Matmul() {
  return {.kind = "matmul",
          .summary = "product with a weight, lettered by `spec`",
          .letters = MatmulLetters,
          .infer = Infer,
          .gradient = Gradient,
          .flops = Flops,
          .linear_inputs = 2};
}

}  // namespace espalier
