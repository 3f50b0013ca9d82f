// Matmuls of activations and weights: one op, with three specs for each way to store a weight. [out, in], Llama's:
// y = x W^T ("bsk,nk->bsn"), dx = dy W, dW = dy^T x. [in, out], GPT-2's: y = x W ("bsk,kn->bsn"), dx = dy W^T, dW = x^T
// dy. A third input (pass `fuse`) is a bias that is added to every row. Without "b" the same specs multiply two
// matrices (Muon): "sk,nk->sn", "sk,kn->sn", "sk,sn->kn", into the type of the inputs; with "e" as many pairs of them.
//
// With the attribute `columns` (pass `join`) the weight is several ones, neighbours in memory, whose rows follow one
// another; what is n in the spec has the columns of all of them: y = [y1 y2] = x [W1; W2]^T, dx = [dy1 dy2] [W1; W2],
// [dW1; dW2] = [dy1 dy2]^T x.
//
// Operands in fp8 (pass `quantize`) have scales, which are the last two inputs: with {scales="tensor"} one per rank,
// with "row" one per row of the operand. Their dims y and z count the shards of the contracted dims. With "mx" each
// block of 32 has one (block_scales.hpp): u and v count their bytes on a rank.
#include <map>
#include <numeric>

#include "espalier/graph/columns.hpp"
#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

/// The spec of a gradient of a matmul, which is in fp8 if the matmul is.
Attributes Spec(const GradientBuilder& g, const MatmulSpec& spec) {
  Attributes attributes{{}, {{"spec", spec.Text()}}};
  if (g.ForwardAttributes().numbers.contains(kFp8Mark)) attributes.numbers[std::string(kFp8Mark)] = 1;
  return attributes;
}

/// The dims of an operand's scales: its dims that are not contracted if each row has one, and the shards; those of
/// blocks also have their bytes.
std::string ScaleDims(const MatmulSpec& spec, const std::string& operand, const std::string& scales, char shards,
                      char bytes) {
  if (scales == "mx") return {shards, bytes};
  std::string dims;
  for (char dim : operand)
    if (scales == "row" && !spec.IsContracted(dim)) dims += dim;
  return dims + shards;
}
Dtype ProductType(const OpContext& c) { return IsFp8(c.ElementType(0)) ? Dtype::kBf16 : c.ElementType(0); }

Einsum MatmulEinsum(const OpContext& c) {
  const MatmulSpec spec = MatmulSpecOf(c.op.attributes);
  Einsum einsum{{spec.a, spec.b}, {spec.result}, "ebsnkyz"};
  if (const size_t weights = ColumnsOf(c.op.attributes).size(); weights > 0) {
    if (spec.MakesWeightGradient())
      einsum.outputs.assign(weights, spec.result);
    else
      einsum.inputs.insert(einsum.inputs.end(), weights - 1, spec.b);
    return einsum;
  }
  if (c.inputs.size() % 2 == 1) einsum.inputs.push_back(spec.result.substr(2));
  if (const auto scales = c.op.attributes.texts.find("scales"); scales != c.op.attributes.texts.end()) {
    einsum.inputs.push_back(ScaleDims(spec, spec.a, scales->second, 'y', 'u'));
    einsum.inputs.push_back(ScaleDims(spec, spec.b, scales->second, 'z', 'v'));
  }
  return einsum;
}

/// The extent of every dim of the spec; n is that of all weights together.
std::map<char, int64_t> ExtentsOf(const OpContext& c, const MatmulSpec& spec) {
  std::map<char, int64_t> extents;
  for (size_t d = 0; d < spec.a.size(); ++d) extents[spec.a[d]] = c.Extents(0)[d];
  for (size_t d = 0; d < spec.b.size(); ++d) extents[spec.b[d]] = c.Extents(1)[d];
  const std::vector<int64_t> columns = ColumnsOf(c.op.attributes);
  if (!columns.empty()) extents['n'] = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  return extents;
}

std::vector<Type> Infer(const OpContext& c) {
  const MatmulSpec spec = MatmulSpecOf(c.op.attributes);
  const std::map<char, int64_t> extents = ExtentsOf(c, spec);
  Shape shape;
  for (char dim : spec.result) shape.push_back(extents.at(dim));
  if (!spec.MakesWeightGradient()) return {MakeType(ProductType(c), std::move(shape))};
  std::vector<Type> gradients;
  for (int64_t rows : ColumnsOf(c.op.attributes)) gradients.push_back(MakeType(Dtype::kF32, {rows, shape[1]}));
  if (gradients.empty()) gradients.push_back(MakeType(Dtype::kF32, std::move(shape)));
  return gradients;
}

/// The weights or their gradients.
Neighbours NeighboursOf(const Op& op) {
  const size_t weights = ColumnsOf(op.attributes).size();
  if (weights == 0) return {};
  return MatmulSpecOf(op.attributes).MakesWeightGradient() ? Neighbours{.outputs = {0, weights}}
                                                           : Neighbours{.inputs = {1, weights}};
}

void MatmulGradient(GradientBuilder& g) {
  const MatmulSpec forward = MatmulSpecOf(g.ForwardAttributes());
  CHECK(!forward.MakesWeightGradient(), "only the forward matmul has a gradient");
  const auto& [x, w, y] = forward;
  const int dy = g.Adjoint(0);
  g.Emit(OpKind::kMatmul, {dy, g.Input(1)}, Spec(g, {y, w, x}), {0});
  if (w[0] == y[2])
    g.Emit(OpKind::kMatmul, {dy, g.Input(0)}, Spec(g, {y, x, w}), {1});
  else
    g.Emit(OpKind::kMatmul, {g.Input(0), dy}, Spec(g, {x, y, w}), {1});
}

/// 2 M N K: each element of the output is a dot product over the contracted dims.
double Flops(const LocalOp& c) {
  const MatmulSpec spec = MatmulSpecOf(c.op.attributes);
  double contracted = 1;
  for (size_t d = 0; d < spec.a.size(); ++d)
    if (spec.IsContracted(spec.a[d])) contracted *= double(c.inputs[0][d]);
  return 2.0 * double(Volume(c.outputs[0])) * contracted;
}

}  // namespace

OpDefinition Matmul() {
  return {.summary = "matmul with a weight; `spec` gives the einsum dims",
          .einsum = MatmulEinsum,
          .infer = Infer,
          .kernel = {.rows = Rows::kIndependent, .work = Flops, .key = Texts("spec", "scales")},
          .gradient = MatmulGradient,
          .linear_inputs = 2,
          .neighbours = NeighboursOf};
}

}  // namespace espalier
