// Which attention a call gets: cuDNN's where it has one, else our own.
#include "attention.hpp"

#include "espalier/ops/fused_attention.hpp"
#include "fused_attention.hpp"
#include "kernels.hpp"

namespace espalier::cuda {
namespace {

AttentionSizes SizesOf(const AttentionShape& a) { return {a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_dim}; }

Piece PieceOf(const SequencePiece& piece) { return {piece.start, piece.length, piece.cp}; }

AttentionExtents ExtentsOf(const AttentionShape& a) {
  return {a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_dim, a.causal, PieceOf(a.query_piece), PieceOf(a.key_piece)};
}

bool IsFusable(const KernelCall& call, const AttentionShape& a) {
  const bool plain_order = a.query_piece.cp == 1 && a.key_piece.cp == 1 && a.query_piece.start == a.key_piece.start;
  return FusedAttentionTakes(SizesOf(a), {call.inputs[0].dtype, call.outputs[0].dtype, a.causal, plain_order}, FusedAttentionMajor());
}

using PrepareFused = bool (*)(const FusedCall&, int64_t);

/// CuDNN serves the call. If not, our kernels must.
bool UseFused(const KernelCall& call, const AttentionShape& a, PrepareFused prepare) {
  if (IsFusable(call, a) && prepare({SizesOf(a), a.causal}, call.workspace_bytes)) return true;
  if (a.head_dim > kWidestHead)
    throw UserError(ExitStatus::kDeck, fmt::format("model.heads: heads of {} elements; on GPUs attention takes at most {}: use more heads, or run.device = \"cpu\"",
                                                   a.head_dim, kWidestHead));
  return false;
}

bool IsBf16(const Tensor& x) { return x.dtype == Dtype::kBf16; }

}  // namespace

void PrepareAttention(const KernelCall& call) { UseFused(call, AttentionOf(call), PrepareFusedAttention); }
void PrepareAttentionGrad(const KernelCall& call) { UseFused(call, AttentionOf(call), PrepareFusedAttentionGrad); }

// q T[b,s,n], k T[b,t,m], v T[b,t,m] -> o T or f32[b,s,n], lse f32[b,h,s]. A query that sees no key: o = 0, lse = -inf.
void Attention(const KernelCall& call) {
  const AttentionShape a = AttentionOf(call);
  const std::span<const Tensor> in = call.inputs, out = call.outputs;
  if (UseFused(call, a, PrepareFusedAttention)) {
    const FusedMemory memory{.q = in[0].data, .k = in[1].data, .v = in[2].data, .o = out[0].data, .lse = out[1].data, .d_o = nullptr, .dq = nullptr,
                             .dk = nullptr, .dv = nullptr, .workspace = call.workspace, .workspace_bytes = call.workspace_bytes};
    return FusedAttention({SizesOf(a), a.causal}, memory, StreamOf(call));
  }
  LaunchAttention(ExtentsOf(a), {in[0].data, in[1].data, in[2].data, nullptr, nullptr, nullptr, IsBf16(in[0])},
                  {out[0].data, out[1].As<float>(), IsBf16(out[0])}, StreamOf(call));
}

// q, k, v, o, lse, dO -> dq, dk, dv
void AttentionGrad(const KernelCall& call) {
  const AttentionShape a = AttentionOf(call);
  const std::span<const Tensor> in = call.inputs, out = call.outputs;
  if (UseFused(call, a, PrepareFusedAttentionGrad)) {
    const FusedMemory memory{.q = in[0].data, .k = in[1].data, .v = in[2].data, .o = in[3].data, .lse = in[4].data, .d_o = in[5].data, .dq = out[0].data,
                             .dk = out[1].data, .dv = out[2].data, .workspace = call.workspace, .workspace_bytes = call.workspace_bytes};
    return FusedAttentionGrad({SizesOf(a), a.causal}, memory, StreamOf(call));
  }
  LaunchAttentionGrad(ExtentsOf(a), {in[0].data, in[1].data, in[2].data, in[3].data, in[4].As<float>(), in[5].data, IsBf16(in[0])},
                      {out[0].data, out[1].data, out[2].data, IsBf16(out[0])}, StreamOf(call));
}

}  // namespace espalier::cuda
