// Matmuls of activations and weights: one op, with three specs for each way to store a weight. [out, in], Llama's:
// y = x W^T ("bsk,nk->bsn"), dx = dy W, dW = dy^T x. [in, out], GPT-2's: y = x W ("bsk,kn->bsn"), dx = dy W^T, dW = x^T
// dy. A third input (pass `fuse`) is a bias that is added to every row. Without "b" the same specs multiply two
// matrices (Muon): "sk,nk->sn", "sk,kn->sn", "sk,sn->kn", into the type of the inputs.
//
// With the attribute `columns` (pass `join`) the weight is several ones, neighbours in memory, whose rows follow one
// another; what is n in the spec has the columns of all of them: y = [y1 y2] = x [W1; W2]^T, dx = [dy1 dy2] [W1; W2],
// [dW1; dW2] = [dy1 dy2]^T x.
//
// Operands in fp8 (pass `quantize`) have scales, which are the last two inputs: with {scales="tensor"} one per rank,
// with "row" one per row of the operand. Their dims y and z count the shards of the contracted dims.
#include <map>
#include <numeric>

#include "espalier/graph/columns.hpp"
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

/// The spec of a gradient of a matmul, which is in fp8 if the matmul is.
Attributes Spec(const GradientBuilder& g, const std::string& a, const std::string& b, const std::string& c) {
  Attributes attributes{{}, {{"spec", a + "," + b + "->" + c}}};
  if (g.ForwardAttributes().numbers.contains(kFp8Mark)) attributes.numbers[std::string(kFp8Mark)] = 1;
  return attributes;
}

Einsum ParseSpec(const std::string& spec) {
  const size_t comma = spec.find(','), arrow = spec.find("->");
  return {{spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1)}, {spec.substr(arrow + 2)}, "bsnkyz"};
}
/// The dims of an operand's scales: its dims that are not contracted if each row has one, and the shards.
std::string ScaleDims(const std::string& operand, const std::string& result, bool rows, char shards) {
  std::string dims;
  for (char dim : operand)
    if (rows && result.find(dim) != result.npos) dims += dim;
  return dims + shards;
}
Dtype ProductType(const OpContext& c) { return IsFp8(c.ElementType(0)) ? Dtype::kBf16 : c.ElementType(0); }

/// A matmul that contracts the tokens makes a weight gradient, in fp32.
bool MakesWeightGradient(const Einsum& einsum) { return einsum.inputs[0].size() == 3 && einsum.outputs[0].size() == 2; }

Einsum MatmulEinsum(const OpContext& c) {
  Einsum einsum = ParseSpec(c.op.attributes.Text("spec"));
  if (const size_t weights = ColumnsOf(c.op.attributes).size(); weights > 0) {
    if (MakesWeightGradient(einsum))
      einsum.outputs.assign(weights, einsum.outputs[0]);
    else
      einsum.inputs.insert(einsum.inputs.end(), weights - 1, einsum.inputs[1]);
    return einsum;
  }
  const std::string result = einsum.outputs[0], a = einsum.inputs[0], b = einsum.inputs[1];
  if (c.inputs.size() % 2 == 1) einsum.inputs.push_back(result.substr(2));
  if (const auto scales = c.op.attributes.texts.find("scales"); scales != c.op.attributes.texts.end()) {
    einsum.inputs.push_back(ScaleDims(a, result, scales->second == "row", 'y'));
    einsum.inputs.push_back(ScaleDims(b, result, scales->second == "row", 'z'));
  }
  return einsum;
}

/// The extent of every dim of the spec; n is that of all weights together.
std::map<char, int64_t> ExtentsOf(const OpContext& c, const Einsum& spec) {
  std::map<char, int64_t> extents;
  for (size_t i = 0; i < 2; ++i)
    for (size_t d = 0; d < spec.inputs[i].size(); ++d) extents[spec.inputs[i][d]] = c.Extents(static_cast<int>(i))[d];
  const std::vector<int64_t> columns = ColumnsOf(c.op.attributes);
  if (!columns.empty()) extents['n'] = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  return extents;
}

std::vector<Type> Infer(const OpContext& c) {
  const Einsum spec = ParseSpec(c.op.attributes.Text("spec"));
  const std::map<char, int64_t> extents = ExtentsOf(c, spec);
  Shape shape;
  for (char dim : spec.outputs[0]) shape.push_back(extents.at(dim));
  if (!MakesWeightGradient(spec)) return {MakeType(ProductType(c), std::move(shape))};
  std::vector<Type> gradients;
  for (int64_t rows : ColumnsOf(c.op.attributes)) gradients.push_back(MakeType(Dtype::kF32, {rows, shape[1]}));
  if (gradients.empty()) gradients.push_back(MakeType(Dtype::kF32, std::move(shape)));
  return gradients;
}

/// The weights or their gradients.
Neighbours NeighboursOf(const Op& op) {
  const size_t weights = ColumnsOf(op.attributes).size();
  if (weights == 0) return {};
  const bool gradients = MakesWeightGradient(ParseSpec(op.attributes.Text("spec")));
  return gradients ? Neighbours{.outputs = {0, weights}} : Neighbours{.inputs = {1, weights}};
}

void MatmulGradient(GradientBuilder& g) {
  const Einsum einsum = ParseSpec(g.ForwardAttributes().Text("spec"));
  CHECK(!MakesWeightGradient(einsum), "only the forward matmul has a gradient");
  const std::string &x = einsum.inputs[0], &w = einsum.inputs[1], &y = einsum.outputs[0];
  const int dy = g.Adjoint(0);
  g.Emit(OpKind::kMatmul, {dy, g.Input(1)}, Spec(g, y, w, x), {0});
  if (w[0] == y[2])
    g.Emit(OpKind::kMatmul, {dy, g.Input(0)}, Spec(g, y, x, w), {1});
  else
    g.Emit(OpKind::kMatmul, {g.Input(0), dy}, Spec(g, x, y, w), {1});
}

/// 2 M N K: each element of the output is a dot product over the contracted dims.
double Flops(const LocalOp& c) {
  const Einsum einsum = ParseSpec(c.op.attributes.Text("spec"));
  double contracted = 1;
  for (size_t d = 0; d < einsum.inputs[0].size(); ++d)
    if (einsum.outputs[0].find(einsum.inputs[0][d]) == std::string::npos) contracted *= double(c.inputs[0][d]);
  return 2.0 * double(Volume(c.outputs[0])) * contracted;
}

}  // namespace

OpDefinition Matmul() {
  return {.kind = OpKind::kMatmul,
          .summary = "matmul with a weight; `spec` gives the einsum dims",
          .einsum = MatmulEinsum,
          .infer = Infer,
          .gradient = MatmulGradient,
          .flops = Flops,
          .linear_inputs = 2,
          .neighbours = NeighboursOf};
}

}  // namespace espalier
