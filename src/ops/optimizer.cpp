// What happens once a step: squares of the gradients, norm and clipping, AdamW (Loshchilov and Hutter 2019, algorithm
// 2, constants as in torch.optim.AdamW and clip_grad_norm_). Step-dependent numbers are values, so that no kernel takes
// one as an argument.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Type Scalar() { return MakeType(Dtype::kF32, {}); }

Letters SquaresLetters(const OpContext& c) {
  const std::string letters = LettersOfRank(c.Extents(0).size());
  return {{letters}, {""}, letters};
}
std::vector<Type> SquaresInfer(const OpContext&) { return {Scalar()}; }

Letters ClipLetters(const OpContext& c) {
  return {std::vector<std::string>(c.inputs.size()), std::vector<std::string>(5), ""};
}
std::vector<Type> ClipInfer(const OpContext&) { return std::vector(5, Scalar()); }

/// Of one tensor.
Letters AdamwLetters(const OpContext& c) {
  const std::string l = LettersOfRank(c.Extents(4).size());
  return {{"", "", "", "", l, l, l, l}, {l, l, l}, l};
}
std::vector<Type> AdamwInfer(const OpContext& c) { return std::vector(3, MakeType(Dtype::kF32, c.Extents(4))); }

}  // namespace

OpDefinition SumSquares() {
  return {.kind = "sum_squares",
          .summary = "sum of squares of all elements",
          .letters = SquaresLetters,
          .infer = SquaresInfer};
}
OpDefinition Clip() {
  return {
      .kind = "clip",
      .summary =
          "mean loss, gradient norm, factor of the update, whether to apply it, and whose squares are first not finite",
      .letters = ClipLetters,
      .infer = ClipInfer};
}
OpDefinition Adamw() {
  return {.kind = "adamw",
          .summary = "AdamW update of weights and moments, in place",
          .letters = AdamwLetters,
          .infer = AdamwInfer,
          .per_tensor = {.shared = 4, .inputs = 4, .outputs = 3}};
}

}  // namespace espalier
