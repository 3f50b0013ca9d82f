// The ops of Muon (Jordan et al. 2024; constants as in torch.optim.Muon) beside its matmuls: the direction of a step
// from momentum and gradient, the first and the last step of its orthogonalisation, and the update of the master. All
// are element-wise. src/passes/optimizer/muon.cpp puts them together. Experts' weights [e,n,k] are matrices one after
// the other: with {each=1} `normalize` divides each by its own norm.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Type F32Like(const OpContext& c, int input) { return MakeType(Dtype::kF32, c.Extents(input)); }

/// scale, apply; momentum, gradient; with a momentum of bf16 the step.
Einsum DirectionEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.Extents(2).size());
  Einsum einsum = {{"", "", dims, dims}, {dims, dims}, dims};
  if (c.inputs.size() > 4) einsum.inputs.emplace_back();
  return einsum;
}
std::vector<Type> DirectionInfer(const OpContext& c) {
  return {MakeType(c.ElementType(2), c.Extents(2)), F32Like(c, 2)};
}

Einsum NormalizeEinsum(const OpContext& c) {
  if (IsForEach(c.op)) return {{"abc", "a"}, {"abc"}, "abc"};
  const std::string dims = DimsOfRank(c.Extents(0).size());
  return {{dims, ""}, {dims}, dims};
}
std::vector<Type> NormalizeInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "normalize to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0))};
}

Einsum WeightedSumEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.Extents(0).size());
  return {{dims, dims}, {dims}, dims};
}
std::vector<Type> WeightedSumInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

/// lr, apply; master, orthogonal.
Einsum UpdateEinsum(const OpContext& c) {
  const std::string dims = DimsOfRank(c.Extents(2).size());
  Einsum einsum = {{"", "", dims, dims}, {dims}, dims};
  if (TypeOfCopy(c.op)) einsum.outputs.push_back(dims);
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
  return {.summary = "matrices divided by their Frobenius norms, of which the squares are given",
          .einsum = NormalizeEinsum,
          .infer = NormalizeInfer,
          .kernel = {.rows = Rows::kTogether,
                     .work = EachOperandOnce,
                     .key = KeyAttributes{.texts = {"to"}, .numbers = {"each"}}}};
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
