// Softmax cross-entropy in three steps, so that a sharded vocabulary needs three small reductions and never gathers
// logits:
//   max_v x                        (reduced by max)
//   sum_v exp(x - max), x_target   (reduced by sum)
//   loss = sum over tokens of log(sum) + max - x_target
// Where a rank has the whole vocabulary, one op takes the first two steps and reads the logits once: without max among
// its inputs, logits_sum has it as a third output (src/passes/fuse.cpp). Backward starts from 1 at the loss and goes
// straight to the logits: softmax - onehot. It waits for nothing, so cross_entropy makes it in the same pass over the
// logits, in their place. Targets below 0 are not counted. With an attribute z_loss = c the differentiated loss also
// has c log(Z)^2 for each token, log(Z) = log(sum) + max: token_loss has their sum as a third output, and the gradient
// is softmax (1 + 2 c log(Z)) - onehot. An attribute weight = w multiplies the gradient: the loss counts w times in
// what is differentiated, while token_loss reports it whole.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Type RowType(const OpContext& c) { return MakeType(Dtype::kF32, {c.Extents(0)[0], c.Extents(0)[1]}); }

Einsum MaxEinsum(const OpContext&) { return {{"bsv"}, {"bs"}, "bsv", Reduce::kMax}; }
std::vector<Type> MaxInfer(const OpContext& c) { return {RowType(c)}; }

bool FindsMax(const OpContext& c) { return c.inputs.size() == 2; }
Einsum SumEinsum(const OpContext& c) {
  if (FindsMax(c)) return {{"bsv", "bs"}, {"bs", "bs", "bs"}, "bs"};
  return {{"bsv", "bs", "bs"}, {"bs", "bs"}, "bsv"};
}
std::vector<Type> SumInfer(const OpContext& c) { return std::vector(FindsMax(c) ? 3 : 2, RowType(c)); }
void SumGradient(GradientBuilder& g) {
  CHECK(g.Adjoint(0) == GradientBuilder::kSeed, "logits_sum: its sums may feed token_loss only");
  g.Emit(OpKind::kCrossEntropyGrad, {g.Input(0), g.Input(1), g.Output(0), g.Input(2)}, g.ForwardAttributes(), {0});
}

size_t LossOutputs(const OpContext& c) { return c.op.attributes.NumberOr("z_loss", 0) > 0 ? 3 : 2; }
Einsum LossEinsum(const OpContext& c) {
  return {{"bs", "bs", "bs", "bs"}, std::vector<std::string>(LossOutputs(c)), "bs"};
}
std::vector<Type> LossInfer(const OpContext& c) { return std::vector(LossOutputs(c), MakeType(Dtype::kF32, {})); }
void LossGradient(GradientBuilder& g) {
  if (g.Adjoint(0) == GradientBuilder::kSeed) g.Pass(1, GradientBuilder::kSeed);
}

Einsum GradEinsum(const OpContext&) { return {{"bsv", "bs", "bs", "bs"}, {"bsv"}, "bsv"}; }
std::vector<Type> GradInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }

Einsum CrossEntropyEinsum(const OpContext&) { return {{"bsv", "bs"}, {"bs", "bs", "bs", "bsv"}, "bs"}; }
std::vector<Type> CrossEntropyInfer(const OpContext& c) {
  std::vector<Type> types(3, RowType(c));
  types.push_back(GradInfer(c)[0]);
  return types;
}

}  // namespace

OpDefinition LogitsMax() {
  return {.summary = "largest logit of each token",
          .einsum = MaxEinsum,
          .infer = MaxInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}
OpDefinition LogitsSum() {
  return {.summary = "sum of exponentials and the target's logit of each token; fused: its largest logit, too",
          .einsum = SumEinsum,
          .infer = SumInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = SumGradient};
}
OpDefinition TokenLoss() {
  return {.summary = "sum of token losses, number of tokens counted, and sum of the z-loss if there is one",
          .einsum = LossEinsum,
          .infer = LossInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = LossGradient,
          .accumulates = true,
          .is_loss = true};
}
OpDefinition CrossEntropyGrad() {
  return {.summary = "adjoint of the summed loss in the logits",
          .einsum = GradEinsum,
          .infer = GradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{0, 0}}};
}
OpDefinition CrossEntropy() {
  return {.summary = "fused logits_sum of whole rows and cross_entropy_grad: what each has as output",
          .einsum = CrossEntropyEinsum,
          .infer = CrossEntropyInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes},
          .in_place = {{3, 0}}};
}

}  // namespace espalier
