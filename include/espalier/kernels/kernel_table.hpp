// The numeric leaves. One kernel per op and backend; `reference` is plain code with fp64 inside, with which the others
// are compared. Kernels know nothing of graphs, ranks or MPI: a tensor only states its place in the whole tensor.
//
// Inputs -> outputs, T being f32 or bf16, the same for all T of a call; {attributes}; + outputs may accumulate; = the
// first output may be any input of its shape. Any extent may be 0.
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
//                         a, b, bias T of the result's last dim: added to every row before the sums are rounded
//                {scales} the same of fp8 operands, contiguous along the contracted dim, into bf16 or f32:
//                         a, b, [bias bf16,] scales of a and b f32: of each one, or with "row" one per row of a and per
//                         row of b as stored; a dW has operands nbs,kbs->nk or kbs,nbs->kn
//   quantize {spec, to}   x bf16 -> fp8 `to` in the order of spec's dims, its scales f32 (src/kernels/fp8.hpp):
//                         bsk->bsk,y bsk->kbs,y nk->nk,y nk->kn,y have one; bsk->bsk,bsy bsk->kbs,ky nk->nk,ny
//                         nk->kn,ky have one per row of the result
//   add_bias =            x T[b,s,n], bias T[n] -> T[b,s,n]
//   bias_grad +           dy T[b,s,n] -> f32[n]
//   gelu =                x -> x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//   gelu_grad =           x, dy -> dx
//   dropout {rate, key} = x T[b,s,n], numbers of tokens i32[b,s], step f32[] -> T[b,s,n]: x / (1 - rate) or 0
//                         (src/kernels/dropout.hpp)
//   rope {head_dim, inverse} =   x T[b,s,n], table f32[s,head_dim] -> T[b,s,n]
//   rope_table {theta, head_dim} positions i32[s] -> f32[s,head_dim]: cosines, then sines
//   attention {head_dim, causal} q T[b,s,n], k, v T[b,t,m] -> o T[b,s,n], lse f32[b,h,s]
//             {rate, key} dropout of probabilities; the last inputs: numbers of queries' tokens i32[b,s], step f32[]
//             {cached} k and v are caches T[b,t,m], and the last input is the queries' positions i32[s]; CPUs only
//             {cp, length, hop} rows are in zigzag order, k and v come from `hop` members away; o and gradients may be
//             f32
//   attention_grad {same} q, k, v, o, lse, do -> dq, dk, dv
//   attention_merge =     oa f32[b,s,n], lse_a f32[b,h,s], ob, lse_b -> o T[b,s,n], lse f32[b,h,s]
//   cache_write           cache T[b,t,n], x T[b,s,n], positions i32[s] -> the cache with x in the rows of its positions
//   add =                 two or more of one type and shape -> their sum, in order
//   swiglu =              g, u -> silu(g) u
//   swiglu_grad =         g, u, dy -> dg, du; du may be an input, too
//   logits_max            x T[b,s,v] -> f32[b,s]
//   logits_sum            x, max, targets i32[b,s] -> sum of exp(x - max), target's logit (0 if not here) f32[b,s]
//                         x, targets -> the same two, and the row's largest logit f32[b,s]
//   token_loss +          max, sum, target, targets -> sum of losses, tokens counted f32[]; targets < 0 do not count
//   cross_entropy_grad =  x, max, sum, targets -> dx T[b,s,v]
//   cross_entropy         x, targets -> sum, target's logit, largest logit f32[b,s], dx T[b,s,v], which may be x: the
//                         bits of logits_sum and cross_entropy_grad
//   cast                  f32 or bf16 -> f32 or bf16
//   accumulate +          f32[...] -> f32[...]
//   sum_squares           f32[...] -> f32[]
//   clip {clip_norm}      loss, count, squares... -> mean loss, norm, scale, apply, first, all f32[];
//                         clip_norm 0: no clipping;
//                         first: which of the squares is the first not to be finite, from 0; -1: none
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
#include <span>
#include <string_view>

#include "espalier/util/attributes.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A dense row-major shard in memory.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape shape;  ///< local extents
  Shape start;  ///< global index of the first element, per dim

  template <typename T>
  T* As() const {
    return static_cast<T*>(data);
  }
};

/// One kernel call. `accumulate`: add to the fp32 outputs instead of overwriting them (ops that declare it). `stream`:
/// the cudaStream_t on which a cuda kernel is issued; it returns at once, and all pointers are the device's.
struct KernelCall {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  const Attributes* attributes = nullptr;
  bool accumulate = false;
  void* stream = nullptr;
  /// The same call for several blocks of rows: the first input of block i is `input_stride_bytes` after the first input
  /// of block i - 1, the first output likewise; the blocks share all other operands. Only cuda's matmul takes more than
  /// one.
  int64_t blocks = 1, input_stride_bytes = 0, output_stride_bytes = 0;
};

using Kernel = void (*)(const KernelCall&);

/// The kernel of an op, or nullptr if the backend has none. Op names are defined in src/ops.
Kernel FindReferenceKernel(std::string_view op);
Kernel FindCpuKernel(std::string_view op);

/// The instruction level of the cpu's kernels, chosen once: "sse2", "avx2", "avx512", "avx512_bf16" or "amx" on x86-64,
/// "neon" on aarch64. The highest level that the processor has, or the one that the environment variable ESPALIER_ISA
/// names. Throws UserError (kDeck) if the processor lacks that.
std::string_view CpuLevel();

/// The level without ESPALIER_ISA.
std::string_view UncappedCpuLevel();

/// True if the cpu's bf16 GEMMs widen to fp32 because the level has no instructions for them.
bool CpuWidensBf16();

/// Sets the number of threads of cpu kernels (OpenMP), for calls from any thread; >= 1, else a CHECK fails.
/// Only matmul's bits depend on it.
void SetCpuThreads(int threads);

}  // namespace espalier
