// Keys and values of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 9 to 15). A head of the up
// projection kv [b, t, heads (nope + value)] is nope columns of its key, then its value; every key ends with the same
// rotated columns, `shared` [b, t, rope]. tp shards the heads, and then the gradient of `shared` is a partial sum.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

int64_t NopeDim(const OpContext& c) { return c.op.attributes.Integer("nope_dim"); }
int64_t ValueDim(const OpContext& c) { return c.op.attributes.Integer("value_dim"); }

Einsum KeysEinsum(const OpContext&) { return {{"bsh", "bse"}, {"bsh", "bsh"}, "bsh"}; }
std::vector<Type> KeysInfer(const OpContext& c) {
  Shape k = c.Extents(0), v = k;
  const int64_t heads = k[2] / (NopeDim(c) + ValueDim(c));
  k[2] = heads * (NopeDim(c) + c.Extents(1)[2]);
  v[2] = heads * ValueDim(c);
  return {MakeType(c.ElementType(0), k), MakeType(c.ElementType(0), v)};
}
void KeysGradient(GradientBuilder& g) {
  g.Emit(OpKind::kLatentKeysGrad, {g.Adjoint(0), g.Adjoint(1)}, g.ForwardAttributes(), {0, 1});
}

Einsum KeysGradEinsum(const OpContext&) { return {{"bsh", "bsh"}, {"bsh", "bse"}, "bsh"}; }
std::vector<Type> KeysGradInfer(const OpContext& c) {
  Shape kv = c.Extents(0), shared = kv;
  const int64_t heads = c.Extents(1)[2] / ValueDim(c);
  kv[2] = heads * (NopeDim(c) + ValueDim(c));
  shared[2] = heads == 0 ? 0 : c.Extents(0)[2] / heads - NopeDim(c);
  return {MakeType(c.ElementType(0), kv), MakeType(c.ElementType(0), shared)};
}

}  // namespace

OpDefinition LatentKeys() {
  return {.summary = "keys and values of all heads, from their up projection and the columns that all keys share",
          .einsum = KeysEinsum,
          .infer = KeysInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("nope_dim", "value_dim")},
          .gradient = KeysGradient};
}
OpDefinition LatentKeysGrad() {
  return {.summary = "adjoint of latent_keys",
          .einsum = KeysGradEinsum,
          .infer = KeysGradInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = Numbers("nope_dim", "value_dim")}};
}

}  // namespace espalier
