// Which attention a call gets: cuDNN's where it has one, else our own.
#include "attention.hpp"

#include "attention_in_blocks.hpp"
#include "fused_attention.hpp"
#include "kernels.hpp"

namespace espalier::cuda {
namespace {

Piece PieceOf(const SequencePiece& piece) { return {piece.start, piece.length, piece.cp}; }

AttentionExtents ExtentsOf(const AttentionShape& a) {
  return {a.batch,
          a.queries,
          a.keys,
          a.heads,
          a.kv_heads,
          a.head_dim,
          a.causal,
          PieceOf(a.query_piece),
          PieceOf(a.key_piece)};
}

AttentionInBlocks BlocksOf(const KernelCall& call, const AttentionShape& a) {
  const AttentionRows rows{
      a.query_piece.cp, a.query_piece.length, a.query_piece.start, a.queries, a.key_piece.start, a.keys, a.causal};
  return {{a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_dim},
          AttentionBlocksOf(rows),
          call.inputs[0].dtype,
          call.outputs[0].dtype};
}

using PrepareBlocks = bool (*)(const AttentionInBlocks&, const KernelCall&);

/// CuDNN serves the call. If not, our kernels must.
bool UseFused(const KernelCall& call, const AttentionInBlocks& blocks, PrepareBlocks prepare) {
  if (FusedAttentionTakes(blocks, FusedAttentionMajor()) && prepare(blocks, call)) return true;
  if (const int64_t e = blocks.whole.head_dim; e > kWidestHead)
    throw UserError(ExitStatus::kDeck, fmt::format("model.heads: heads of {} elements; on GPUs attention takes at most "
                                                   "{}: use more heads, or run.device = \"cpu\"",
                                                   e, kWidestHead));
  return false;
}

bool IsBf16(const Tensor& x) { return x.dtype == Dtype::kBf16; }

}  // namespace

void PrepareAttention(const KernelCall& call) { UseFused(call, BlocksOf(call, AttentionOf(call)), PrepareInBlocks); }
void PrepareAttentionGrad(const KernelCall& call) {
  UseFused(call, BlocksOf(call, AttentionOf(call)), PrepareGradInBlocks);
}

// q T[b,s,n], k T[b,t,m], v T[b,t,m] -> o T or f32[b,s,n], lse f32[b,h,s]. A query that sees no key: o = 0, lse = -inf.
void Attention(const KernelCall& call) {
  const AttentionShape a = AttentionOf(call);
  const AttentionInBlocks blocks = BlocksOf(call, a);
  if (UseFused(call, blocks, PrepareInBlocks)) return AttentionByBlocks(blocks, call);
  const std::span<const Tensor> in = call.inputs, out = call.outputs;
  LaunchAttention(ExtentsOf(a), {in[0].data, in[1].data, in[2].data, nullptr, nullptr, nullptr, IsBf16(in[0])},
                  {out[0].data, out[1].As<float>(), IsBf16(out[0])}, StreamOf(call));
}

// q, k, v, o, lse, dO -> dq, dk, dv
void AttentionGrad(const KernelCall& call) {
  const AttentionShape a = AttentionOf(call);
  const AttentionInBlocks blocks = BlocksOf(call, a);
  if (UseFused(call, blocks, PrepareGradInBlocks)) return AttentionGradByBlocks(blocks, call);
  const std::span<const Tensor> in = call.inputs, out = call.outputs;
  LaunchAttentionGrad(ExtentsOf(a),
                      {in[0].data, in[1].data, in[2].data, in[3].data, in[4].As<float>(), in[5].data, IsBf16(in[0])},
                      {out[0].data, out[1].data, out[2].data, IsBf16(out[0])}, StreamOf(call));
}

}  // namespace espalier::cuda
