// The arguments of every kernel, by name: one struct per op, shared by the backends. read_arguments.hpp fills them from
// a KernelCall and checks types and extents, so kernels read no operand numbers and check nothing twice.
//
// Comments give shapes and types: T is f32 or bf16, the same for all T of a struct. An Array without data is an operand
// that the call leaves out. nvcc includes this header, so it does not include fmt.
//
// Calls: inputs -> outputs, T being f32 or bf16, the same for all T of a call; {attributes}; + outputs may accumulate;
// = the first output may be any input of its shape. Any extent may be 0.
//   embedding             ids i32[b,s], table T[v,d] -> T[b,s,d]; 0 for ids outside the table's rows
//   embedding_grad +      ids, dy T[b,s,d] -> f32[v,d]
//   rms_norm {eps}        x T[b,s,d], w T[d] -> y T[b,s,d], rstd f32[b,s]
//                         x, w, addend T[b,s,d] -> y, rstd, sum T[b,s,d]: of the sum x + addend, which may be
//                         either
//   rms_norm_grad         x, w, rstd, dy -> dx
//                         x, w, rstd, dy, addend -> dx + addend, which may be the addend
//   rms_norm_weight_grad + x, rstd, dy -> dw f32[d]
//   rms_norm_backward +   x, w, rstd, dy[, addend] -> dx, dw: the bits of the two; only dw accumulates
//   layer_norm {eps}      x T[b,s,d], w, bias T[d] -> y T[b,s,d], mean, rstd f32[b,s]; with an addend as rms_norm
//   layer_norm_grad       x, w, mean, rstd, dy -> dx; with an addend as rms_norm_grad
//   layer_norm_weight_grad + x, mean, rstd, dy -> dw, dbias f32[d]
//   layer_norm_backward + x, w, mean, rstd, dy[, addend] -> dx, dw, dbias: the bits of the two; dx never accumulates
//   position_embedding =  x T[b,s,d], positions i32[s], table T[p,d] -> x plus the table's row of each position
//   position_embedding_grad + positions, dy T[b,s,d] -> f32[p,d]
//   matmul {spec}         bsk,nk->bsn  bsn,nk->bsk (T)  bsn,bsk->nk (f32 +), for weights [in, out]
//                         bsk,kn->bsn  bsn,kn->bsk (T)  bsk,bsn->kn (f32 +)
//                         sk,nk->sn  sk,kn->sn  sk,sn->kn (T); esk,enk->esn  esk,ekn->esn  esk,esn->ekn (T)
//                         a, b, bias T of the result's last dim: added to every row before the sums are rounded
//                {scales} the same of fp8 operands, contiguous along the contracted dim, into bf16 or f32:
//                         a, b, [bias bf16,] scales of a and b f32: of each one, or with "row" one per row of a and per
//                         row of b as stored, or with "mx" f8e8m0 of blocks (ops/block_scales.hpp); a dW has operands
//                         nbs,kbs->nk or kbs,nbs->kn
//   quantize {spec, to}   x bf16 -> fp8 `to` in the order of spec's dims, its scales f32 (src/kernels/fp8.hpp):
//                         bsk->bsk,y bsk->kbs,y nk->nk,y nk->kn,y have one; bsk->bsk,bsy bsk->kbs,ky nk->nk,ny
//                         nk->kn,ky have one per row of the result, bsk->bsk,yu bsk->kbs,yu nk->nk,yu nk->kn,yu
//                         f8e8m0 of its blocks, padded with 0
//                         ebsk->ebsk,ebs with the expert of each row i32[e,b,r]: one per row of experts
//                         enk->enk,e enk->ekn,e enk->enk,en enk->ekn,ek: of each expert as of a weight
//   grouped_matmul {spec} rows of experts, weights of the experts, the expert of each row i32[e,b,r], ascending:
//                         ebsk,enk->ebsn  ebsn,enk->ebsk (T)  ebsn,ebsk->enk (f32 +)
//                {scales} ebsk,enk->ebsn  ebsn,ekn->ebsk of fp8 operands into bf16: then the scales f32 of each row,
//                and
//                         of each expert, or with "row" of each row of its weight
//   route {per_token, scores, normalize, scale, groups, top_groups, group_best}
//                         logits T[b,s,e], [bias f32[e]] -> weights f32[b,s,k], chosen experts i32[b,s,k]
//         {balanced}      + positions i32[s], which choose in place of the scores
//   expert_load + {experts}
//                         chosen -> how often each expert was chosen f32[e]
//   concatenate           f32 of any shape, ... -> the elements of all, one input after the other f32[n]
//   bias_update {rate}    apply f32[], bias f32[e], load of all experts f32[f] -> the bias, in place
//   route_grad {same}     logits, chosen, dweights f32[b,s,k] -> dlogits
//   balance {scores}      logits, chosen -> sums of scores f32[b,e], how often chosen f32[b,e], sum of squared log
//                         denominators f32[b]
//   balance_grad {scores, balance, z_loss}
//                         logits, how often chosen -> dlogits
//   router_loss + {balance, z_loss}
//                         the outputs of balance -> balance loss, z-loss f32[]
//   router_entropy + {scores}
//                         logits -> sum over tokens of the entropy of their scores f32[]
//   dispatch {pass}       x T[b,s,d], chosen i32[b,s,k], weights f32[b,s,k] -> rows T[e,b,r,d], their weights
//                         f32[e,b,r] and experts i32[e,b,r], the row of each token's experts i32[1,b,s,k]
//   dispatch_grad +       drows, f32[e,b,r] of their weights, places i32[1,b,s,k] -> dx, dweights
//   combine +             rows T[e,b,r,d], places -> T[b,s,d]: the sum of each token's rows
//   combine_grad          dy, places -> drows
//   weighted_swiglu {limit}  g, u T[e,b,r,n], weights f32[e,b,r], experts i32[e,b,r] -> weight silu(g) u; with a
//                         limit the form of SwigluRule (src/kernels/arithmetic.hpp)
//   weighted_swiglu_grad {limit}  g, u, weights, dy, experts -> dg, du, dweights; dg may be g or dy
//   add_row_bias =        x T[e,b,r,n], bias T[e,n], experts i32[e,b,r], [weights f32[e,b,r]] -> x + weight bias
//   row_bias_grad +       dy T[e,b,r,n], experts, [weights] -> f32[e,n]
//   row_weight_grad       dy, bias, experts -> f32[e,b,r]
//   add_bias =            x T[b,s,n], bias T[n] -> T[b,s,n]
//   bias_grad +           dy T[b,s,n] -> f32[n]
//   gelu =                x -> x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//   gelu_grad =           x, dy -> dx
//   dropout {rate, key} = x T[b,s,n], numbers of tokens i32[b,s], step f32[] -> T[b,s,n]: x / (1 - rate) or 0
//                         (src/kernels/dropout.hpp)
//   rope {head_dim, inverse, first, adjacent} =
//                         x T[b,s,n], table f32[s,rope_dim] -> T[b,s,n]
//   latent_keys {nope_dim, value_dim}
//                         kv T[b,t,h (nope + value)], shared T[b,t,rope] -> k T[b,t,h (nope + rope)], v T[b,t,h value]
//   latent_keys_grad {same}
//                         dk, dv -> dkv, dshared
//   latent_attention {nope_dim, value_dim, score_factor, window}
//                         q T[b,s,h (nope + rope)], w T[h (nope + value),rank], caches T[b,t,rank] and T[b,t,rope],
//                         positions i32[s] -> o T[b,s,h value], lse f32[b,h,s]
//   rope_table {theta, head_dim} positions i32[s] -> f32[s,head_dim]: cosines, then sines
//   attention {head_dim, causal} q T[b,s,n], k, v T[b,t,m] -> o T[b,s,n], lse f32[b,h,s]
//             {value_dim, score_factor} v and o have heads of value_dim; scores have a factor beside 1/sqrt(head_dim)
//             {rate, key} dropout of probabilities; the last inputs: numbers of queries' tokens i32[b,s], step f32[]
//             {cached} k and v are caches T[b,t,m], and the last input is the queries' positions i32[s]; CPUs only
//             {cp, length, hop} rows are in zigzag order, k and v come from `hop` members away; o and gradients may be
//             f32
//   attention_grad {same} q, k, v, o, lse, do -> dq, dk, dv
//   attention_merge =     oa f32[b,s,n], lse_a f32[b,h,s], ob, lse_b -> o T[b,s,n], lse f32[b,h,s]
//   attention_sink {head_dim} =  o T[b,s,n], lse f32[b,h,s], sinks T[h] -> o, lse with the sinks in the denominators
//   attention_sink_grad {head_dim} + lse, sinks, o, do -> dsinks f32[h]
//   cache_write           cache T[b,t,n], x T[b,s,n], positions i32[s] -> the cache with x in the rows of its positions
//   add =                 two or more of one type and shape -> their sum, in order
//   swiglu =              g, u -> silu(g) u
//   swiglu_grad =         g, u, dy -> dg, du; du may be an input, too
//   logits_max            x T[b,s,v] -> f32[b,s]
//   logits_sum            x, max, targets i32[b,s] -> sum of exp(x - max), target's logit (0 if not here) f32[b,s]
//                         x, targets -> the same two, and the row's largest logit f32[b,s]
//   token_loss +          max, sum, target, targets -> sum of losses, tokens counted f32[]; targets < 0 do not count
//   cross_entropy_grad = {z_loss, weight} x, max, sum, targets -> dx T[b,s,v]
//   cross_entropy         x, targets -> sum, target's logit, largest logit f32[b,s], dx T[b,s,v], which may be x: the
//                         bits of logits_sum and cross_entropy_grad
//   cast                  f32 or bf16 -> f32 or bf16
//   accumulate +          f32[...] -> f32[...]
//   sum_squares           f32[...] -> f32[]; with {each} f32[e,n,k] -> f32[e]
//   clip {clip_norm}      loss, count, squares... -> mean loss, norm, scale, apply, first, all f32[];
//                         clip_norm 0: no clipping;
//                         first: which of the squares is the first not to be finite, from 0; -1: none
//   mean                  count, sums... -> their sum / count, f32[]
//   adamw {beta1, beta2, eps, weight_decay, decaying, rounding, copy} lr, step, scale, apply f32[]; of each tensor
//                         master, exp_avg, exp_avg_sq (f32, or bf16 with 16 hex digits of `rounding`), g f32 -> master,
//                         exp_avg, exp_avg_sq of each, on these inputs, and with `copy` the new master in bf16; the
//                         first `decaying` decay; apply 0: nothing is written
//   slice                 x -> the box that the output's start and extents name
//   pad {max}             x -> a larger box with x in its place, else 0, or with `max` the lowest value there is
//   take_rows {first}     x [b,s,...] -> rows of its memory from `first` on, as many as the output has
//   put_rows {first}      x -> the output's rows from `first` on; nothing else is written
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/device_memory/fused_attention.hpp"
#include "espalier/kernels/gemm.hpp"
#include "espalier/util/types.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/array.hpp"
#include "kernels/dropout.hpp"
#include "kernels/host_device.hpp"
#include "kernels/stochastic_rounding.hpp"

namespace espalier {

/// y[t] = the row of the table for ids[t]; 0 for ids outside of it. A table shard holds the rows from `first_id` on.
struct EmbeddingArgs {
  const int32_t* ids;  ///< i32[tokens]
  Array table;         ///< T[rows,width]
  Array y;             ///< T[tokens,width]
  int64_t tokens, rows, width, first_id;
};

/// The gradient: rows of dy added up by id, in the order of tokens.
struct EmbeddingGradArgs {
  const int32_t* ids;  ///< i32[tokens]
  Array dy;            ///< T[tokens,width]
  float* dtable;       ///< f32[rows,width]
  int64_t tokens, rows, width, first_id;
  bool accumulate;
};

/// Row r of y = row r of x plus the table's row for the position of row r. y may be x.
struct PositionEmbeddingArgs {
  Array x;                   ///< T[rows,width], rows of `length` per sequence
  const int32_t* positions;  ///< i32[length]; `length` is all rows if each sequence has positions of its own
  Array table;               ///< T[table_rows,width]
  Array y;                   ///< T[rows,width]
  int64_t rows, length, table_rows, width;
};

/// The gradient: rows of dy, summed over the batch, added up by position.
struct PositionEmbeddingGradArgs {
  const int32_t* positions;  ///< i32[length]; `batch` is 1 if each sequence has positions of its own
  Array dy;                  ///< T[batch,length,width]
  float* dtable;             ///< f32[table_rows,width]
  int64_t batch, length, table_rows, width;
  bool accumulate;
};

/// RMSNorm (Zhang and Sennrich 2019, eq. 4) of x or, with an addend, of sum = x + addend, which may be x or the addend.
struct RmsNormArgs {
  Array x, weight, addend;  ///< T[rows,width], T[width], T[rows,width] or none
  Array y;                  ///< T[rows,width]
  float* rstd;              ///< f32[rows]
  Array sum;                ///< T[rows,width], with an addend only
  int64_t rows, width;
  double eps;
};

/// dx = rstd (weight dy - xhat mean(weight dy xhat)), plus the addend if there is one; dx may be the addend.
struct RmsNormGradArgs {
  Array x, weight;    ///< T[rows,width], T[width]
  const float* rstd;  ///< f32[rows]
  Array dy, addend;   ///< T[rows,width], the addend or none
  Array dx;           ///< T[rows,width]
  int64_t rows, width;
};

/// dweight = the sum over rows of dy xhat.
struct RmsNormWeightGradArgs {
  Array x;            ///< T[rows,width]
  const float* rstd;  ///< f32[rows]
  Array dy;           ///< T[rows,width]
  float* dweight;     ///< f32[width]
  int64_t rows, width;
  bool accumulate;
};

/// RmsNormGradArgs and RmsNormWeightGradArgs, for the same x, rstd and dy, in one call: the same bits.
struct RmsNormBackwardArgs {
  RmsNormGradArgs input;
  RmsNormWeightGradArgs weight;
};

/// A matrix of rows to be normalised: tokens, or the heads of all tokens. Under tensor parallelism this shard has
/// `width` of `whole_width` columns.
struct NormRows {
  int64_t rows, width, whole_width;
};

/// sums = the sum of squares of each row.
struct RowSquaresArgs {
  Array x;      ///< T[rows,width]
  float* sums;  ///< f32[rows]
  NormRows shape;
};

/// dx = 2 x dsums. dx may be x.
struct RowSquaresGradArgs {
  const float* dsums;  ///< f32[rows]
  Array x, dx;         ///< T[rows,width]
  NormRows shape;
};

/// RMSNorm (Zhang and Sennrich 2019, eq. 4) from the sums of squares of whole rows: y = weight x rstd, with
/// rstd = 1 / sqrt(sums / whole_width + eps). y may be x.
struct RowNormArgs {
  Array x, weight;    ///< T[rows,width], T[width]
  const float* sums;  ///< f32[rows]
  Array y;            ///< T[rows,width]
  NormRows shape;
  double eps;
};

/// dx = weight dy rstd. dx may be dy.
struct RowNormGradArgs {
  Array dy, weight;   ///< T[rows,width], T[width]
  const float* sums;  ///< f32[rows]
  Array dx;           ///< T[rows,width]
  NormRows shape;
  double eps;
};

/// dsums = -rstd^3 sum(dy weight x) / (2 whole_width) of each row.
struct RowNormSquaresGradArgs {
  Array dy, x, weight;  ///< T[rows,width] twice, T[width]
  const float* sums;    ///< f32[rows]
  float* dsums;         ///< f32[rows]
  NormRows shape;
  double eps;
};

/// dweight = the sum over rows of dy x rstd.
struct RowNormWeightGradArgs {
  Array dy, x;        ///< T[rows,width]
  const float* sums;  ///< f32[rows]
  float* dweight;     ///< f32[width]
  NormRows shape;
  double eps;
  bool accumulate;
};

/// LayerNorm (Ba et al. 2016, eq. 4) of x or, with an addend, of sum = x + addend, which may be x or the addend.
struct LayerNormArgs {
  Array x, weight, bias, addend;  ///< T[rows,width], T[width], T[width], T[rows,width] or none
  Array y;                        ///< T[rows,width]
  float *mean, *rstd;             ///< f32[rows]
  Array sum;                      ///< T[rows,width], with an addend only
  int64_t rows, width;
  double eps;
};

/// dx = rstd (weight dy - mean(weight dy) - xhat mean(weight dy xhat)), plus the addend if there is one; dx may be it.
struct LayerNormGradArgs {
  Array x, weight;           ///< T[rows,width], T[width]
  const float *mean, *rstd;  ///< f32[rows]
  Array dy, addend;          ///< T[rows,width], the addend or none
  Array dx;                  ///< T[rows,width]
  int64_t rows, width;
};

/// dweight and dbias = the sums over rows of dy xhat and of dy.
struct LayerNormWeightGradArgs {
  Array x;                   ///< T[rows,width]
  const float *mean, *rstd;  ///< f32[rows]
  Array dy;                  ///< T[rows,width]
  float *dweight, *dbias;    ///< f32[width]
  int64_t rows, width;
  bool accumulate;
};

/// LayerNormGradArgs and LayerNormWeightGradArgs, for the same x, mean, rstd and dy, in one call: the same bits.
struct LayerNormBackwardArgs {
  LayerNormGradArgs input;
  LayerNormWeightGradArgs weight;
};

/// y = x + bias in every row. y may be x.
struct AddBiasArgs {
  Array x, bias;  ///< T[rows,width], T[width]
  Array y;        ///< T[rows,width]
  int64_t rows, width;
};

/// dbias = the sum over rows of dy.
struct BiasGradArgs {
  Array dy;      ///< T[rows,width]
  float* dbias;  ///< f32[width]
  int64_t rows, width;
  bool accumulate;
};

/// y = x / 2 (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016). y may be x.
struct GeluArgs {
  Array x, y;  ///< T[n]
  int64_t n;
};

/// dx = dy d gelu(x) / dx. dx may be x or dy.
struct GeluGradArgs {
  Array x, dy, dx;  ///< T[n]
  int64_t n;
};

/// y = x / (1 - rate) where the mask keeps the element, else 0; a gradient takes the same function. y may be x.
struct DropoutArgs {
  Array x, y;  ///< T[rows,width]
  int64_t rows, width;
  DropoutMask mask;
};

/// c = a b, plus a bias or plus the old c; strides and types are the GEMM's.
struct MatmulArgs {
  Gemm gemm;
  Array a, b, bias, c;                 ///< bias T[n] or none
  Array a_scales = {}, b_scales = {};  ///< scales of fp8 operands: f32[1], f32[m] and f32[n], or f8e8m0 of blocks

  /// One of the blocks.
  MatmulArgs Block(int64_t i) const {
    MatmulArgs one = *this;
    one.gemm.shape.blocks = 1;
    one.a = a.From(i * gemm.shape.a_block);
    one.b = b.From(i * gemm.shape.b_block);
    one.c = c.From(i * gemm.shape.c_block);
    return one;
  }
};

/// In place of the expert of a row that nobody reads.
inline constexpr int32_t kNoExpert = INT32_MAX;

/// Rows of experts: rows of the same expert follow one another, and rows without an expert come last.
struct GroupedRows {
  const int32_t* expert_of_row;  ///< i32[rows], ascending, of the experts of this rank
  int64_t rows, experts;
};

/// The three products of a linear layer: y = x W^T, dx = dy W, dW = dy^T x.
enum class GroupedProduct : uint8_t { kForward, kInputGradient, kWeightGradient };

/// Each row by the weight of its expert. `out` and `in` are the extents of an expert's weight: rows of y and dy have
/// `out` elements, rows of x and dx `in`. The bits of a row of y or dx do not depend on other rows.
///
/// Operands in fp8 have scales. Both are then contiguous along the contracted dim, so dx is computed as the
/// forward product of dy and weights [in,out].
struct GroupedMatmulArgs {
  GroupedProduct product;
  GroupedRows group;
  int64_t out, in;
  Array a;          ///< T[rows,in]; of both gradients T[rows,out]
  Array b;          ///< T[experts,out,in]; of a weight gradient T[rows,in]
  Array c;          ///< T[rows,out]; of an input gradient T[rows,in]; of a weight gradient f32[experts,out,in]
  bool accumulate;  ///< of a weight gradient: c += a^T b
  const float* a_scales = nullptr;  ///< f32[rows] of a in fp8
  const float* b_scales = nullptr;  ///< f32[experts] of b in fp8, or f32[experts,out]
  bool b_has_row_scales = false;    ///< the latter
};

/// How a router makes weights of logits, and how it chooses experts (src/ops/route.cpp).
struct RouterRule {
  bool sigmoid, normalize;
  double scale;
  int64_t groups = 1, top_groups = 1, group_best = 2;
};

/// The experts with the highest scores, highest first; among equal scores, the lower number first.
struct RouteArgs {
  Array logits;       ///< T[tokens,experts]
  const float* bias;  ///< f32[experts], for the choice alone; nullptr: none
  float* weights;     ///< f32[tokens,per_token]
  int32_t* chosen;    ///< i32[tokens,per_token]
  int64_t tokens, experts, per_token;
  RouterRule rule;
  const int32_t* positions = nullptr;  ///< i32[length]: a token's position chooses; nullptr: its values do
  int64_t length = 1;                  ///< token t has position index t mod `length`
};

/// The adjoint of the weights in the logits.
struct RouteGradArgs {
  Array logits;           ///< T[tokens,experts]
  const int32_t* chosen;  ///< i32[tokens,per_token]
  const float* dweights;  ///< f32[tokens,per_token]
  Array dlogits;          ///< T[tokens,experts]
  int64_t tokens, experts, per_token;
  RouterRule rule;
};

/// load = how often each expert was chosen.
struct ExpertLoadArgs {
  const int32_t* chosen;  ///< i32[n]
  float* load;            ///< f32[experts]
  int64_t n, experts;
  bool accumulate;
};

/// y = the elements of all inputs, one after the other.
struct ConcatenateArgs {
  struct Input {
    const float* x;  ///< f32[n]
    int64_t n;
  };
  std::vector<Input> inputs;
  float* y;  ///< f32[elements of all inputs]
};

/// bias += rate sign(mean of loads - load), of the experts from `first` on.
struct BiasUpdateArgs {
  const float *apply, *load;  ///< f32[], 0: nothing is written; f32[experts]
  float* bias;                ///< f32[n]
  int64_t first, n, experts;
  double rate;
};

/// Sums over the tokens of each sequence, for the losses of a router (src/ops/balance.cpp). Sigmoid scores are divided
/// by the sum of a token's.
struct BalanceArgs {
  Array logits;           ///< T[batch,tokens,experts]
  const int32_t* chosen;  ///< i32[batch,tokens,per_token]
  float* sums;            ///< f32[batch,experts]: of scores
  float* counts;          ///< f32[batch,experts]: how often each expert was chosen
  float* squares;         ///< f32[batch]: of log sum exp(logits)
  int64_t batch, tokens, experts, per_token;
  bool sigmoid;
};

/// The adjoint of the losses in the logits. The sum of scores of expert e has the adjoint balance counts[e].
struct BalanceGradArgs {
  Array logits;         ///< T[batch,tokens,experts]
  const float* counts;  ///< f32[batch,experts]
  Array dlogits;        ///< T[batch,tokens,experts]
  int64_t batch, tokens, experts;
  bool sigmoid;
  double balance, z_loss;
};

/// entropy = sum over tokens of - sum over experts of p log(p), p the scores of a token divided by their sum.
struct RouterEntropyArgs {
  Array logits;    ///< T[tokens,experts]
  float* entropy;  ///< f32[]
  int64_t tokens, experts;
  bool sigmoid, accumulate;
};

/// balance_loss = balance sum of counts sums, z = z_loss sum of squares.
struct RouterLossArgs {
  const float *sums, *counts, *squares;  ///< f32[n], f32[n], f32[batch]
  float *balance_loss, *z;               ///< f32[]
  int64_t n, batch;
  double balance, z_loss;
  bool accumulate;
};

/// Row places[t][i] is the copy of token t for its expert chosen[t][i], if that is one of this rank's. Rows are in
/// order of experts, and in order of tokens within an expert. Rows are written from `first_row` on, as many as there
/// are or fit; all other places are -1.
struct DispatchArgs {
  Array x;                 ///< T[tokens,width]
  const int32_t* chosen;   ///< i32[tokens,per_token], no expert twice for a token
  const float* weights;    ///< f32[tokens,per_token]
  Array rows;              ///< T[count,width]
  float* row_weights;      ///< f32[count]; 0 of rows without an expert
  int32_t* expert_of_row;  ///< i32[count], counted from first_expert
  int32_t* places;         ///< i32[tokens,per_token]
  int64_t tokens, per_token, width;
  int64_t first_expert, experts;  ///< of this rank
  int64_t first_row, count;
};

/// dx = the sum of the adjoints of a token's rows, in the order of its experts; dweights = the adjoints of their
/// weights.
struct DispatchGradArgs {
  Array drows;                ///< T[rows,width]
  const float* drow_weights;  ///< f32[rows]
  const int32_t* places;      ///< i32[tokens,per_token]
  Array dx;                   ///< T[tokens,width]
  float* dweights;            ///< f32[tokens,per_token]
  int64_t tokens, per_token, width;
  bool accumulate;
};

/// y = the sum of a token's rows, in the order of its experts.
struct CombineArgs {
  Array rows;             ///< T[rows,width]
  const int32_t* places;  ///< i32[tokens,per_token]; -1: no row
  Array y;                ///< T[tokens,width]
  int64_t tokens, per_token, width;
  bool accumulate;
};

/// Every row of a token has the token's adjoint.
struct CombineGradArgs {
  Array dy;               ///< T[tokens,width]
  const int32_t* places;  ///< i32[tokens,per_token]
  Array drows;            ///< T[rows,width]
  int64_t tokens, per_token, width;
};

/// y = x + weight bias, of the bias of each row's expert. y may be x.
struct AddRowBiasArgs {
  Array x;               ///< T[rows,width]
  Array bias;            ///< T[experts,width]
  const float* weights;  ///< f32[rows]; nullptr: all are 1
  Array y;               ///< T[rows,width]
  GroupedRows group;     ///< rows without an expert are left out
  int64_t width;
};

/// dbias = the sum of weight dy over the rows of each expert.
struct RowBiasGradArgs {
  Array dy;              ///< T[rows,width]
  const float* weights;  ///< f32[rows]; nullptr: all are 1
  float* dbias;          ///< f32[experts,width]
  GroupedRows group;
  int64_t width;
  bool accumulate;
};

/// dweights = dy . bias of each row.
struct RowWeightGradArgs {
  Array dy;         ///< T[rows,width]
  Array bias;       ///< T[experts,width]
  float* dweights;  ///< f32[rows]
  GroupedRows group;
  int64_t width;
};

/// y = weight silu(gate) up, with a weight for each row, or another form of SwiGLU.
struct WeightedSwigluArgs {
  Array gate, up;        ///< T[rows,width]
  const float* weights;  ///< f32[rows]
  Array y;               ///< T[rows,width]
  GroupedRows group;     ///< rows without an expert are left out
  int64_t width;
  SwigluRule rule;
};

/// Adjoints of gate, up and weights. dgate may be gate or dy.
struct WeightedSwigluGradArgs {
  Array gate, up;        ///< T[rows,width]
  const float* weights;  ///< f32[rows]
  Array dy, dgate, dup;  ///< T[rows,width]
  float* dweights;       ///< f32[rows]
  GroupedRows group;
  int64_t width;
  SwigluRule rule;
};

/// The extent of one scale of fp8 values: the tensor, a row of the result, or kScaleBlock elements of such a row.
enum class ScaleOf : uint8_t { kTensor, kRow, kBlock };

/// y = x / scale in fp8, or y = x^T / scale. A scale depends on the largest magnitude of what shares it (fp8.hpp).
/// Blocks follow one another in memory and are quantized each by itself.
struct QuantizeArgs {
  Array x;              ///< bf16[blocks,rows,width]
  Array y;              ///< fp8[blocks,rows,width], transposed [blocks,width,rows]
  Array scales;         ///< f32[blocks], or one per row of y; or f8e8m0 of blocks (ops/block_scales.hpp)
  int64_t rows, width;  ///< extents of a block of x
  bool transposed;
  ScaleOf scale_of;
  int64_t blocks = 1;
  const int32_t* expert_of_row = nullptr;  ///< of rows of experts (GroupedRows): those without an expert are left out

  int64_t scale_bytes = 0;  ///< of scales of blocks, with their padding of zeros

  /// Extents of a block of y.
  ESPALIER_HOST_DEVICE int64_t Lines() const { return transposed ? width : rows; }
  ESPALIER_HOST_DEVICE int64_t Depth() const { return transposed ? rows : width; }
  /// Scales in fp32 of a block.
  ESPALIER_HOST_DEVICE int64_t ScalesOfBlock() const { return scale_of == ScaleOf::kTensor ? 1 : Lines(); }
  /// Block `i` by itself.
  ESPALIER_HOST_DEVICE QuantizeArgs Block(int64_t i) const {
    QuantizeArgs one = *this;
    one.x.data = x.As<Bf16>() + i * rows * width;
    one.y.data = y.As<uint8_t>() + i * rows * width;
    one.scales.data = scales.As<float>() + i * ScalesOfBlock();
    one.blocks = 1;
    return one;
  }
};

/// Rotary position embedding (Su et al. 2021, eq. 34), rotate-half as in Hugging Face's Llama, of the first `rotated`
/// columns, which are heads, and in each head of the first `rope_dim`; the others stay. y may be x.
struct RopeArgs {
  Array x;             ///< T[rows,width]: heads of head_dim; row r has position index r mod `length`
  const float* table;  ///< f32[length,rope_dim]: cosines, then sines
  Array y;             ///< T[rows,width]
  int64_t rows, width, rotated, length, head_dim, rope_dim;
  float sine_sign;        ///< -1: the inverse rotation
  int64_t first = 0;      ///< first of the rope_dim columns of a head that are rotated
  bool adjacent = false;  ///< pairs are columns 2 i and 2 i + 1 of them, not i and i + rope_dim / 2
};

/// Multi-head latent attention projects kv up (DeepSeek-V2, eq. 9 to 15): row by row, a head of it is nope columns of a
/// key, then a value; the other columns of a key, `rope` of them, are the same in all heads.
struct LatentWidths {
  int64_t rows, heads, nope, rope, value;
};

/// Keys and values of all heads.
struct LatentKeysArgs : LatentWidths {
  Array kv;      ///< T[rows,heads (nope + value)]
  Array shared;  ///< T[rows,rope]
  Array k;       ///< T[rows,heads (nope + rope)]
  Array v;       ///< T[rows,heads value]
};

/// The gradient: dshared is the sum over the heads, in their order, in fp32.
struct LatentKeysGradArgs : LatentWidths {
  Array dk, dv, dkv, dshared;  ///< T, as k, v, kv and shared
};

/// Attention to cached latents without keys and values (src/ops/latent_attention.cpp). A query at position p sees the
/// tokens up to p, of which a window keeps the last.
struct LatentAttentionArgs {
  Array q;                   ///< T[batch,queries,heads (nope + rope)]
  Array w;                   ///< T[heads (nope + value),rank]
  Array latents;             ///< T[batch,tokens,rank]
  Array rotated;             ///< T[batch,tokens,rope]
  const int32_t* positions;  ///< i32[queries]
  Array o;                   ///< T[batch,queries,heads value]
  float* lse;                ///< f32[batch,heads,queries]
  int64_t batch, queries, heads, nope, rope, value, rank, tokens, window;
  float scale;  ///< of scores

  /// Tokens that query s sees.
  ESPALIER_HOST_DEVICE int64_t End(int64_t s) const { return positions[s] + int64_t{1}; }
  ESPALIER_HOST_DEVICE int64_t Begin(int64_t s) const { return window == 0 || End(s) < window ? 0 : End(s) - window; }
};

/// Cosines, then sines, of every position's angles.
struct RopeTableArgs {
  const int32_t* positions;  ///< i32[length]
  float* table;              ///< f32[length,head_dim]
  int64_t length;
  RopeRule rule;
};

/// Attention with grouped heads (Vaswani et al. 2017, eq. 1). A query that sees no key: o = 0, lse = -inf.
struct AttentionArgs {
  AttentionShape shape;
  /// i32[batch,queries]: position of the first token of each query's document, rising with the query's position.
  /// nullptr: 0.
  const int32_t* first_keys;
  Array q, k, v;  ///< T[batch,queries,heads head_dim], T[batch,keys,kv_heads head_dim]; or columns of one tensor
  Array o;        ///< T or f32, as a dense q
  float* lse;     ///< f32[batch,heads,queries]: log of the softmax denominators
  /// i32[queries], adjacent: the queries' positions if k and v are caches; on hosts only. nullptr: see query_shard.
  const int32_t* positions = nullptr;
  DropoutMask dropout{};  ///< dropout of probabilities; lse ignores it

  /// The shape with the place of the queries.
  AttentionShape Placed() const {
    AttentionShape placed = shape;
    if (positions != nullptr && shape.queries > 0) placed.query_shard.start = positions[0];
    return placed;
  }
};

/// The gradient. If k and v are only some of the keys of a softmax, o and lse are the results of the whole softmax.
struct AttentionGradArgs {
  AttentionShape shape;
  const int32_t* first_keys;  ///< as above
  Array q, k, v, o;           ///< T, as above; dq, dk and dv are columns of one tensor if q, k and v are
  const float* lse;           ///< f32[batch,heads,queries]
  Array d_o;                  ///< T, as o
  Array dq, dk, dv;           ///< T or f32, as q, k and v
  BackwardMethod backward{};  ///< method of cuDNN
  DropoutMask dropout{};      ///< dropout of probabilities
};

/// Two partial results of one softmax, merged: o = (e^lse_a o_a + e^lse_b o_b) / (e^lse_a + e^lse_b).
struct AttentionMergeArgs {
  const float *o_a, *lse_a, *o_b, *lse_b;  ///< f32[batch,queries,heads head_dim], f32[batch,heads,queries]
  Array o;                                 ///< T; may be o_a
  float* lse;
  int64_t batch, queries, heads, head_dim;
};

/// The results of attention with a logit of each head in the denominators: lse' = log(e^lse + e^sink), o' = e^(lse -
/// lse') o.
struct AttentionSinkArgs {
  Array o;           ///< T[batch,queries,heads head_dim]
  const float* lse;  ///< f32[batch,heads,queries]
  Array sinks;       ///< T[heads]
  Array o_with;      ///< T, as o; may be o
  float* lse_with;   ///< as lse; may be lse
  int64_t batch, queries, heads, head_dim;
};

/// dsinks = - sum over queries of e^(sink - lse) (dO . o), o and lse with the sinks.
struct AttentionSinkGradArgs {
  const float* lse;  ///< f32[batch,heads,queries]
  Array sinks;       ///< T[heads]
  Array o, d_o;      ///< T[batch,queries,heads head_dim]
  float* dsinks;     ///< f32[heads]
  int64_t batch, queries, heads, head_dim;
  bool accumulate;
};

/// y = the cache with rows of x at their positions. y may be the cache; then only these rows are written.
struct CacheWriteArgs {
  const void* cache;         ///< [batch,length,row_bytes]
  const int32_t* positions;  ///< i32[rows]
  const void* x;             ///< [batch,rows,row_bytes]
  void* y;                   ///< [batch,length,row_bytes]
  int64_t batch, rows, length, row_bytes;
};

/// y = the sum of the terms, in order. y may be any of them.
struct AddArgs {
  std::vector<const void*> terms;  ///< T[n] each
  Array y;                         ///< T[n]
  int64_t n;
};

/// y = x, or y + x.
struct AccumulateArgs {
  const float* x;  ///< f32[n]
  float* y;        ///< f32[n]
  int64_t n;
  bool accumulate;
};

/// Rows of gate and up in memory: `stride` elements from one to the next, more than `width` if both are joined. If they
/// are separate tensors, all elements form one row.
struct GateRows {
  int64_t rows, width, stride;
};

/// y = silu(gate) up (Shazeer 2020, eq. 6). y may be gate or up.
struct SwigluArgs {
  Array gate, up;  ///< T[rows,width], in rows of `shape.stride`
  Array y;         ///< T[rows,width]
  GateRows shape;
};

/// The gradient; dgate and dup may be any of the inputs or, if they are joined, gate and up.
struct SwigluGradArgs {
  Array gate, up;    ///< T[rows,width], in rows of `shape.stride`
  Array dy;          ///< T[rows,width]
  Array dgate, dup;  ///< T[rows,width], in rows of `shape.stride`
  GateRows shape;
};

/// y = x in another element type.
struct CastArgs {
  Array x, y;  ///< [n]
  int64_t n;
};

/// Logits of a shard of the vocabulary: column c is vocabulary index first + c.
struct LogitsShard {
  Array x;  ///< T[rows,width]
  int64_t rows, width, first;
};

/// max = the largest logit of each row; -inf if width is 0.
struct LogitsMaxArgs {
  LogitsShard logits;
  float* max;  ///< f32[rows]
};

/// sum = the sum of exp(x - max) in each row; target = the target's logit, 0 if it is not in this shard.
struct LogitsSumArgs {
  LogitsShard logits;
  const float* max;        ///< f32[rows]; nullptr: computed first, as by LogitsMaxArgs
  const int32_t* targets;  ///< i32[rows]
  float *sum, *target;     ///< f32[rows]
  float* found_max;        ///< f32[rows], for the computed maximum
};

/// loss = the sum of log(sum) + max - target over rows whose target is not negative; count = their number; z = the sum
/// of z_loss (log(sum) + max)^2 (Chowdhery et al. 2022, section 5).
struct TokenLossArgs {
  const float *max, *sum, *target;  ///< f32[rows]
  const int32_t* targets;           ///< i32[rows]
  float *loss, *count, *z;          ///< f32[]; z nullptr: there is no z-loss
  int64_t rows;
  bool accumulate;
  double z_loss;
};

/// dlogits = weight (exp(x - max) / sum (1 + 2 z_loss log Z) - [column is the target]), log Z = log(sum) + max; 0 in
/// rows without a target. dlogits may be the logits.
struct CrossEntropyGradArgs {
  LogitsShard logits;
  const float *max, *sum;  ///< f32[rows]
  const int32_t* targets;  ///< i32[rows]
  Array dlogits;           ///< T[rows,width]
  double z_loss;           ///< 0: none
  float weight;            ///< of the loss
};

/// LogitsSumArgs, which computes the maximum, and CrossEntropyGradArgs in one call: the same bits.
struct CrossEntropyArgs {
  LogitsShard logits;
  const int32_t* targets;     ///< i32[rows]
  float *sum, *target, *max;  ///< f32[rows]
  Array dlogits;              ///< T[rows,width]; may be the logits
  double z_loss;              ///< 0: none
  float weight;               ///< of the loss
};

/// sum = the sum of gradient^2, of each matrix.
struct SumSquaresArgs {
  const float* gradient;  ///< f32[matrices,n]
  float* sum;             ///< f32[matrices]
  int64_t n, matrices;
};

/// Computes the inputs of the update from the sums over all microbatches; all are f32[].
struct ClipArgs {
  const float *loss, *count;
  std::vector<const float*> squares;  ///< sum of squares of each gradient
  float *mean_loss, *norm, *scale, *apply;
  float* first;                          ///< index of the first sum of squares that is not finite, from 0; -1: none
  double clip_norm;                      ///< 0: no clipping
  const float *loss_limit, *norm_limit;  ///< limits above which the update does not apply; nullptr: no limits
};

/// mean = the sum of `sums` / count, or the sum if nothing was counted; all f32[].
struct MeanArgs {
  const float* count;
  std::vector<const float*> sums;
  float* mean;
};

/// A parameter's optimizer state, which is updated in place, and its gradient. Moments of bf16 are rounded
/// stochastically.
struct AdamwTensor {
  float* master;              ///< f32[n]
  Array exp_avg, exp_avg_sq;  ///< M[n], the same M for all tensors of a call
  Array copy;                 ///< bf16[n], optional: becomes the rounded master
  const float* gradient;      ///< f32[n]
  int64_t n;
  WordStream rounding;  ///< random words for moments 0 and 1; only with bf16
};

/// AdamW (Loshchilov and Hutter 2019, algorithm 2; constants as in torch.optim.AdamW); all scalars f32[].
struct AdamwArgs {
  const float *lr, *step, *scale, *apply;  ///< apply 0: nothing is written
  std::vector<AdamwTensor> tensors;
  int64_t decaying;  ///< this many tensors, from the first, have weight decay
  AdamwConstants constants;
};

/// momentum = momentum + (1 - beta) (scale gradient - momentum). The direction is the momentum or, with Nesterov's
/// look-ahead, scale gradient + beta (momentum - scale gradient); it may be the gradient.
struct MuonDirectionArgs {
  const float *scale, *apply;  ///< apply 0: the momentum is unchanged, and is the direction
  const float* step;           ///< with a momentum of bf16, which is rounded stochastically; else nullptr
  Array momentum;              ///< M[n]
  WordStream rounding;         ///< random words for moment 0; only with bf16
  const float* gradient;       ///< f32[n]
  float* direction;            ///< f32[n]
  int64_t n;
  double beta;
  bool nesterov;
};

/// y = x / max(sqrt(squares), eps), of each matrix.
struct NormalizeArgs {
  const float *x, *squares;  ///< f32[matrices,n], f32[matrices]
  Array y;                   ///< T[matrices,n]
  int64_t n, matrices;
  double eps;
};

/// z = alpha x + beta y. z may be x or y.
struct WeightedSumArgs {
  Array x, y, z;  ///< T[n]
  int64_t n;
  double alpha, beta;
};

/// master = master (1 - lr weight_decay) - lr factor orthogonal.
struct MuonUpdateArgs {
  const float *lr, *apply;  ///< apply 0: nothing is written
  float* master;            ///< f32[n]
  Array copy;               ///< bf16[n], optional: becomes the rounded master
  Array orthogonal;         ///< T[n]
  int64_t n;
  double weight_decay, factor;
};

inline constexpr int kMaxDims = 8;

/// Copies the elements that a source box and a target box share, by global index; extents outermost first, dims >= 1.
/// Elements of the target outside of the source become `fill`.
struct BoxArgs {
  int dims;
  int64_t target[kMaxDims], source[kMaxDims];  ///< extents
  int64_t shift[kMaxDims];                     ///< source index = target index + shift
  const void* x;                               ///< the source
  void* y;                                     ///< the target
  int64_t element_bytes;                       ///< 2 or 4
  uint32_t fill;                               ///< for elements of 2 bytes: the element twice
};

/// The target is inside the source.
struct SliceArgs : BoxArgs {};
/// The source is inside the target.
struct PadArgs : BoxArgs {};
/// One dim; the target is a part of it.
struct TakeRowsArgs : BoxArgs {};
/// One dim; the target holds the source's place.
struct PutRowsArgs : BoxArgs {};

}  // namespace espalier
