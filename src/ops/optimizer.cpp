// Once per step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm 2, constants
// as in torch.optim.AdamW and clip_grad_norm_). Numbers that depend on the step are values, not kernel arguments.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Type Scalar() { return MakeType(Dtype::kF32, {}); }

Einsum SumOfSquaresEinsum(const OpContext& c) {
  if (IsForEach(c.op)) return {{"abc"}, {"a"}, "abc"};
  const std::string dims = DimsOfRank(c.Extents(0).size());
  return {{dims}, {""}, dims};
}
std::vector<Type> SumOfSquaresInfer(const OpContext& c) {
  if (!IsForEach(c.op)) return {Scalar()};
  return {MakeType(Dtype::kF32, {c.Extents(0).at(0)})};
}
std::vector<Type> MeanInfer(const OpContext&) { return {Scalar()}; }

constexpr size_t kClipOutputs = 5;
Einsum ClipEinsum(const OpContext& c) {
  return {std::vector<std::string>(c.inputs.size()), std::vector<std::string>(kClipOutputs), ""};
}
std::vector<Type> ClipInfer(const OpContext&) { return std::vector(kClipOutputs, Scalar()); }

/// The count, then the sums.
Einsum MeanEinsum(const OpContext& c) { return {std::vector<std::string>(c.inputs.size()), {""}, ""}; }

/// For one tensor.
Einsum AdamwEinsum(const OpContext& c) {
  const std::string l = DimsOfRank(c.Extents(4).size());
  Einsum einsum = {{"", "", "", "", l, l, l, l}, {l, l, l}, l};
  if (TypeOfCopy(c.op)) einsum.outputs.push_back(l);
  return einsum;
}
/// Moments keep their types.
std::vector<Type> AdamwInfer(const OpContext& c) {
  const Shape& shape = c.Extents(4);
  std::vector<Type> types = {MakeType(Dtype::kF32, shape), MakeType(c.ElementType(5), shape),
                             MakeType(c.ElementType(6), shape)};
  if (const auto copy = TypeOfCopy(c.op)) types.push_back(MakeType(*copy, shape));
  return types;
}

}  // namespace

std::optional<Dtype> TypeOfCopy(const Op& op) {
  const auto copy = op.attributes.texts.find("copy");
  if (copy == op.attributes.texts.end()) return std::nullopt;
  CHECK(copy->second == Name(Dtype::kBf16), "a copy in {}", copy->second);
  return Dtype::kBf16;
}

bool IsForEach(const Op& op) { return op.attributes.numbers.contains("each"); }

OpDefinition SumSquares() {
  return {.summary = "sum of squares of all elements; with `each` of each matrix [n,k] of [e,n,k]",
          .einsum = SumOfSquaresEinsum,
          .infer = SumOfSquaresInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("each")}};
}
OpDefinition Clip() {
  return {.summary =
              "mean loss, gradient norm, factor of the update, whether to apply it, whose squares are first not finite",
          .einsum = ClipEinsum,
          .infer = ClipInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition Mean() {
  return {.summary = "sum of sums over tokens, divided by the number of tokens",
          .einsum = MeanEinsum,
          .infer = MeanInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition Adamw() {
  return {.summary = "AdamW update of weights and moments, in place, and of a copy of the weights in another type",
          .einsum = AdamwEinsum,
          .infer = AdamwInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Texts("copy")},
          .per_tensor = {.shared = 4, .inputs = 4, .outputs = 3}};
}

}  // namespace espalier
