// Causal attention with grouped heads (Vaswani et al. 2017, eq. 1; blocks as in Dao 2023). q is [b, s, heads e], k is
// [b, t, kv_heads e], v is [b, t, kv_heads d] and the result is [b, s, heads d], with e the attribute `head_dim` and d
// the attribute `value_dim` (absent: e). Scores are q k f / sqrt(e), with f the attribute `score_factor` (absent: 1).
// Heads of q, k and v share one einsum dim h, since tp shards both into equal numbers of groups. In k and v it is
// upper-case (H), which means "not sharded over kv_replicate": ranks along that axis share a kv head, and the gradients
// of k and v are partial sums over it. The log of the softmax denominators (lse) is kept, so that backward recomputes
// probabilities block by block.
//
// Under context parallelism (src/passes/context_parallel.cpp) the attributes `cp` and `length` mean that rows are in
// zigzag order, and queries may be sharded on the sequence. With `hop` the keys are sharded like the queries, and
// come from the rank `hop` places before: one block of a ring (Liu et al. 2023), whose fp32 results are parts of a
// softmax, or of a sum of gradients.
//
// The attribute `window` (absent: none) and a last input, i32[b, s], of the position at which each query's document
// begins (absent: 0) hide earlier keys: a query at position p sees keys from the larger of p - window + 1 and that
// position to p. Positions count in the whole sequence, whatever the placement.
//
// With dropout of probabilities (`rate` and `key`, src/kernels/dropout.hpp) the last two inputs are the number of each
// query's token in the global batch, i32[b, s], and the step, f32[].
//
// With `columns` q, k and v are joined in one tensor (graph/columns.hpp), and so are their gradients.
//
// With `cached` (sampling) k and v are caches of all tokens so far, and the last input, i32[s], is the positions of the
// queries, which are adjacent.
#include <algorithm>

#include "espalier/graph/columns.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

bool Has(const OpContext& c, std::string_view attribute) { return c.op.attributes.numbers.contains(attribute); }

/// Einsum of keys and values, and those that may be sharded.
std::string KeyDims(const OpContext& c) { return Has(c, "hop") ? "bsH" : "btH"; }
std::string ShardableDims(const OpContext& c) { return Has(c, "cp") ? "bsh" : "bh"; }

Dtype ResultType(const OpContext& c) { return Has(c, "hop") ? Dtype::kF32 : c.ElementType(0); }

/// Appends the dims of the inputs that not every op has: documents or positions, then dropout.
std::vector<std::string> WithOthers(std::vector<std::string> dims, const OpContext& c) {
  const bool drops = Has(c, "rate");
  if (c.inputs.size() > dims.size() + (drops ? 2 : 0)) dims.emplace_back(Has(c, "cached") ? "s" : "bs");
  if (drops) dims.insert(dims.end(), {"bs", ""});
  return dims;
}

bool IsJoined(const OpContext& c) { return c.op.attributes.texts.contains(kColumns); }
/// q, k and v, or their gradients.
std::vector<std::string> QkvDims(const OpContext& c) {
  if (IsJoined(c)) return {"bsh"};
  return {"bsh", KeyDims(c), KeyDims(c)};
}

Einsum AttentionEinsum(const OpContext& c) { return {WithOthers(QkvDims(c), c), {"bsh", "bhs"}, ShardableDims(c)}; }
std::vector<Type> AttentionInfer(const OpContext& c) {
  Shape q = c.Extents(0);
  if (IsJoined(c)) q[2] = ColumnsOf(c.op.attributes).at(0);
  const int64_t head_dim = c.op.attributes.Integer("head_dim"), heads = q[2] / head_dim;
  q[2] = heads * c.op.attributes.IntegerOr("value_dim", head_dim);
  return {MakeType(ResultType(c), q), MakeType(Dtype::kF32, {q[0], heads, q[1]})};
}
void AttentionGradient(GradientBuilder& g) {
  std::vector<int> inputs = {g.Input(0), g.Input(1), g.Input(2), g.Completed(0), g.Completed(1), g.Adjoint(0)};
  for (int i = 3; i < g.Inputs(); ++i) inputs.push_back(g.Input(i));
  g.Emit(OpKind::kAttentionGrad, inputs, g.ForwardAttributes(), {0, 1, 2});
}

/// The number of pairs in a square of queries and keys with query - key <= distance.
double PairsWithin(double chunk, double distance) {
  const double x = std::clamp(distance, -chunk, chunk);
  return x < 0 ? (chunk + x) * (chunk + x) / 2 : chunk * chunk - (chunk - x) * (chunk - x) / 2;
}
/// Scores that a window leaves in a block of a ring with `keys` per rank, mean over the ranks: each has two chunks, in
/// zigzag order.
double VisibleInHop(double keys, int64_t cp, int64_t hop, double window) {
  const double chunk = keys / 2;
  double pairs = 0;
  for (int64_t rank = 0; rank < cp; ++rank) {
    const int64_t from = (rank + cp - hop) % cp;
    for (int64_t query : {rank, 2 * cp - 1 - rank})
      for (int64_t key : {from, 2 * cp - 1 - from}) {
        const double apart = double(query - key) * chunk;
        pairs += PairsWithin(chunk, window - apart) - PairsWithin(chunk, -apart);
      }
  }
  return pairs / double(cp);
}
/// Keys that a query sees, on average.
double VisibleKeys(const LocalOp& c) {
  const Attributes& a = c.op.attributes;
  const auto keys = double(c.inputs[1][1]), window = double(a.IntegerOr("window", 0));
  // Without a window half of the matrix is visible; in zigzag order half of each block of a ring.
  if (window == 0 || keys == 0) return keys / 2;
  if (a.numbers.contains("hop")) return VisibleInHop(keys, a.Integer("cp"), a.Integer("hop"), window) / keys;
  return window < keys ? window - window * window / (2 * keys) : keys / 2;
}
/// Matmuls over the visible scores that contract or make features of keys, and of values. Documents are not known
/// ahead: the sequence counts as one.
double MatmulFlops(const LocalOp& c, int of_keys, int of_values) {
  const Attributes& a = c.op.attributes;
  const double value_dim = a.NumberOr("value_dim", 0), ratio = value_dim > 0 ? value_dim / a.Number("head_dim") : 1;
  return 2 * double(Volume(c.inputs[0])) * (of_keys + of_values * ratio) * VisibleKeys(c);
}
double ForwardFlops(const LocalOp& c) { return MatmulFlops(c, 1, 1); }

Einsum AttentionGradEinsum(const OpContext& c) {
  std::vector<std::string> inputs = QkvDims(c);
  inputs.insert(inputs.end(), {"bsh", "bhs", "bsh"});
  return {WithOthers(std::move(inputs), c), QkvDims(c), ShardableDims(c)};
}
std::vector<Type> AttentionGradInfer(const OpContext& c) {
  const Dtype dtype = ResultType(c);
  if (IsJoined(c)) return {MakeType(dtype, c.Extents(0))};
  return {MakeType(dtype, c.Extents(0)), MakeType(dtype, c.Extents(1)), MakeType(dtype, c.Extents(2))};
}
/// Scores again, dq and dk; p and dv from do.
double BackwardFlops(const LocalOp& c) { return MatmulFlops(c, 3, 2); }

Einsum MergeEinsum(const OpContext&) { return {{"bsh", "bhs", "bsh", "bhs"}, {"bsh", "bhs"}, "bsh"}; }
std::vector<Type> MergeInfer(const OpContext& c) {
  const std::string& to = c.op.attributes.Text("to");
  CHECK(to == "f32" || to == "bf16", "attention_merge to {}", to);
  return {MakeType(to == "f32" ? Dtype::kF32 : Dtype::kBf16, c.Extents(0)), MakeType(Dtype::kF32, c.Extents(1))};
}

}  // namespace

OpDefinition Attention() {
  return {.summary = "causal attention with grouped heads",
          .einsum = AttentionEinsum,
          .infer = AttentionInfer,
          .kernel = {.rows = Rows::kTogether,
                     .work = ForwardFlops,
                     .key = Numbers("cp", "head_dim", "hop", "value_dim", "window")},
          .gradient = AttentionGradient,
          .joinable = {3, 0}};
}
OpDefinition AttentionGrad() {
  return {.summary = "adjoint of attention in q, k and v",
          .einsum = AttentionGradEinsum,
          .infer = AttentionGradInfer,
          .kernel = {.rows = Rows::kTogether,
                     .work = BackwardFlops,
                     .key = KeyAttributes{.texts = {"backward"},
                                          .numbers = {"cp", "head_dim", "hop", "value_dim", "window"}}},
          .joinable = {3, 3}};
}
OpDefinition AttentionMerge() {
  return {.summary = "two parts of one softmax, each over keys of its own, as one",
          .einsum = MergeEinsum,
          .infer = MergeInfer,
          .kernel = {.rows = Rows::kTogether,
                     .work = EachOperandOnce,
                     .key = KeyAttributes{.texts = {"to"}, .numbers = {"head_dim"}}},
          .in_place = {{0, 0}}};
}

}  // namespace espalier
