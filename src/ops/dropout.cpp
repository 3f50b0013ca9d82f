// Dropout (Srivastava et al. 2014) of the rows of tokens: x, the number of each token in the global batch, i32[b, s],
// and the step, f32[]. `rate` and `key` say what is dropped (src/kernels/dropout.hpp): no element depends on the
// layout. The op is linear in x, and its adjoint is the op itself: the mask is made again, not kept.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum DropoutEinsum(const OpContext&) { return {{"bsd", "bs", ""}, {"bsd"}, "bsd"}; }
std::vector<Type> DropoutInfer(const OpContext& c) { return {MakeType(c.ElementType(0), c.Extents(0))}; }
void DropoutGradient(GradientBuilder& g) {
  g.Emit(OpKind::kDropout, {g.Adjoint(0), g.Input(1), g.Input(2)}, g.ForwardAttributes(), {0});
}

}  // namespace

OpDefinition Dropout() {
  return {.summary = "zeros at random places, the others scaled",
          .einsum = DropoutEinsum,
          .infer = DropoutInfer,
          .kernel = {.rows = Rows::kIndependent, .work = EachOperandOnce, .key = kNoAttributes},
          .gradient = DropoutGradient,
          .in_place = {{0, 0}}};
}

}  // namespace espalier
