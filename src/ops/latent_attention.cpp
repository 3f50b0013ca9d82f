// Attention over cached latents, in sampling (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): q [b, s, heads e], the up
// projection w [heads (nope + value), rank], caches of latents c [b, t, rank] and of the rotated columns r [b, t, rope]
// of all tokens so far, and the positions of the queries, i32[s]. Head h of w is nope rows for keys, then value rows
// for values. Keys and values are not made: with e = nope + rope, a query's score of a token is
//
//   (q_nope w_keys) . c + q_rope . r,  times score_factor / sqrt(e),
//
// and its result is the mean of the latents c under the softmax of the scores, times w_values. tp shards the heads.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum LatentEinsum(const OpContext&) { return {{"bsh", "hk", "btk", "bte", "s"}, {"bsh", "bhs"}, "bh"}; }
std::vector<Type> LatentInfer(const OpContext& c) {
  const int64_t nope = c.op.attributes.Integer("nope_dim"), value = c.op.attributes.Integer("value_dim");
  Shape o = c.Extents(0);
  const int64_t heads = o[2] / (nope + c.Extents(3)[2]);
  o[2] = heads * value;
  return {MakeType(c.ElementType(0), o), MakeType(Dtype::kF32, {o[0], heads, o[1]})};
}
/// Both projections of every query, and of half of the tokens on average two products with the latent and one with the
/// rotated columns.
double LatentFlops(const LocalOp& c) {
  const double rows = double(c.inputs[0][0] * c.inputs[0][1]), rank = double(c.inputs[2][2]);
  const double nope = c.op.attributes.Number("nope_dim"), value = c.op.attributes.Number("value_dim"),
               rope = double(c.inputs[3][2]), heads = double(c.inputs[0][2]) / (nope + rope);
  return 2 * rows * heads * ((nope + value) * rank + double(c.inputs[2][1]) / 2 * (2 * rank + rope));
}

}  // namespace

OpDefinition LatentAttention() {
  return {.summary = "causal attention of queries to cached latents",
          .einsum = LatentEinsum,
          .infer = LatentInfer,
          .kernel = {.rows = Rows::kTogether, .work = LatentFlops, .key = Numbers("nope_dim", "value_dim", "window")}};
}

}  // namespace espalier
