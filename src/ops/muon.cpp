// The ops of Muon (Jordan et al. 2024; constants as in torch.optim.Muon) beside its matmuls: the direction of a step
// from momentum and gradient, the first and the last step of its orthogonalisation, and the update of the master. All
// are element-wise. src/passes/muon.cpp puts them together.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Type F32Like(const OpContext& c, int input) { return MakeType(Dtype::kF32, c.Extents(input)); }

/// scale, apply; momentum, gradient; with a momentum of bf16 the step.
Einsum DirectionEinsum(const OpContext& c) {
  Einsum einsum = {{"", "", "ab", "ab"}, {"ab", "ab"}, "ab"};
  if (c.inputs.size() > 4) einsum.inputs.emplace_back();
  return einsum;
}
std::vector<Type> DirectionInfer(const OpContext& c) {
  return {MakeType(c.ElementType(2), c.Extents(2)), F32Like(c, 2)};
}

Einsum NormalizeEinsum(const OpContext&) { return {{"ab", ""}, {"ab"}, "ab"}; }
std::vector<Type> NormalizeInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "normalize to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0))};
}

Einsum WeightedSumEinsum(const OpContext&) { return {{"ab", "ab"}, {"ab"}, "ab"}; }
std::vector<Type> WeightedSumInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

/// lr, apply; master, orthogonal.
Einsum UpdateEinsum(const OpContext& c) {
  Einsum einsum = {{"", "", "ab", "ab"}, {"ab"}, "ab"};
  if (TypeOfCopy(c.op)) einsum.outputs.emplace_back("ab");
  return einsum;
}
std::vector<Type> UpdateInfer(const OpContext& c) {
  std::vector<Type> types = {F32Like(c, 2)};
  if (const auto copy = TypeOfCopy(c.op)) types.push_back(MakeType(*copy, c.Extents(2)));
  return types;
}

}  // namespace

OpDefinition MuonDirection() {
  return {.summary = "Muon's momentum, moved towards the scaled gradient, and the direction of the step",
          .einsum = DirectionEinsum,
          .infer = DirectionInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{1, 3}}};
}
OpDefinition Normalize() {
  return {.summary = "a matrix divided by its Frobenius norm, of which the square is given",
          .einsum = NormalizeEinsum,
          .infer = NormalizeInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Texts("to")}};
}
OpDefinition WeightedSum() {
  return {.summary = "alpha x + beta y",
          .einsum = WeightedSumEinsum,
          .infer = WeightedSumInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 0}, {0, 1}}};
}
OpDefinition MuonUpdate() {
  return {.summary = "weight decay, a step against an orthogonal direction, and a copy of the weights in another type",
          .einsum = UpdateEinsum,
          .infer = UpdateInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Texts("copy")}};
}

}  // namespace espalier
