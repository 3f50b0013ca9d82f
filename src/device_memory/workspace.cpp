#include "espalier/device_memory/workspace.hpp"

#include <algorithm>
#include <string_view>

#include "espalier/device_memory/expert_rows.hpp"
#include "espalier/device_memory/partial_sums.hpp"
#include "espalier/ops/matmul_spec.hpp"

namespace espalier {
namespace {

/// Sums over the tokens of [b,s,n] tensors, `kSums` of them at once.
template <int64_t kSums>
int64_t TokenSums(const LocalOp& op) {
  const Shape& x = op.inputs[0];
  return ColumnSumBytes(kSums, x[0] * x[1], x[2]);
}

/// The same in a pass over whole rows.
template <int64_t kSums>
int64_t TokenSumsInPass(const LocalOp& op) {
  const Shape& x = op.inputs[0];
  return ColumnSumInPassBytes(kSums, x[0] * x[1], x[2]);
}

/// The sum over the rows of a norm: tokens, or the heads of all tokens.
int64_t HeadSums(const LocalOp& op) {
  const Shape& x = op.inputs[0];
  const int64_t width = op.op.attributes.IntegerOr("head_dim", x[2]);
  return ColumnSumBytes(1, width == 0 ? 0 : Volume(x) / width, width);
}

int64_t AttentionSinkGrad(const LocalOp& op) {
  const Shape& o = op.inputs[2];
  return SinkGradBytes(o[0] * o[1], o[2]);
}

int64_t TokenLoss(const LocalOp& op) { return TokenLossBytes(Volume(op.inputs[0]), std::ssize(op.outputs)); }
/// With `each` for every matrix.
int64_t SumSquares(const LocalOp& op) {
  const Shape& x = op.inputs[0];
  if (op.outputs[0].empty()) return SumSquaresBytes(Volume(x));
  return x[0] * SumSquaresBytes(Volume({x.begin() + 1, x.end()}));
}
int64_t Clip(const LocalOp&) { return kClipBytes; }

/// With one scale per rank, the maxima of parts; with a scale per column, the same per column. Rows and blocks need
/// none. Each expert's weight has its own.
int64_t Quantize(const LocalOp& op) {
  const QuantizeSpec spec = QuantizeSpecOf(op.op.attributes);
  if (spec.HasBlockScales()) return 0;
  const Shape& x = op.inputs[0];
  const int64_t blocks = spec.IsOfExpertWeights() ? x[0] : 1, width = x.empty() ? 1 : x.back(),
                n = blocks == 0 ? 0 : Volume(x) / blocks;
  if (!spec.HasRowScales()) return blocks * MaximaBytes(n);
  return spec.IsTransposed() && width > 0 ? blocks * ColumnSumBytes(1, n / width, width) : 0;
}

/// For cuBLASLt: eight fp32 copies of the output, so that it can split the contracted dim (split-K), plus 64 KiB of its
/// own; at most the 32 MiB that NVIDIA advises for Hopper.
int64_t Matmul(const LocalOp& op) {
  constexpr int64_t kOwn = int64_t{64} << 10, kMax = int64_t{32} << 20;
  const int64_t elements = Volume(op.outputs[0]);
  return elements == 0 ? 0 : std::min(kMax, kOwn + 8 * 4 * elements);
}

int64_t Balance(const LocalOp& op) {
  const Shape& logits = op.inputs[0];
  return BalanceBytes(logits[0], logits[1], logits[2]);
}
int64_t RouterEntropy(const LocalOp& op) { return EntropyBytes(op.inputs[0][0] * op.inputs[0][1]); }
int64_t Dispatch(const LocalOp& op) { return DispatchBytes(Volume(op.inputs[1]), op.outputs[2].at(0)); }

/// The gradient of weights has their shape [e,n,k], the other products have them as input.
int64_t GroupedMatmul(const LocalOp& op) {
  const bool of_weights = op.outputs[0].size() == 3;
  const int64_t rows = Volume(op.inputs[2]), experts = (of_weights ? op.outputs[0] : op.inputs[1]).at(0);
  return GroupedMatmulBytes(of_weights ? experts : GroupedTiles(rows, experts, op.dtype));
}

/// The call of `rank` of cp.
AttentionShape ShapeOfRank(const LocalOp& op, int64_t rank) {
  const Attributes& a = op.op.attributes;
  const int64_t cp = a.IntegerOr("cp", 1), length = a.IntegerOr("length", 0), hop = a.IntegerOr("hop", 0);
  const Shape &q = op.inputs[0], &k = op.inputs[1];
  const int64_t e = a.Integer("head_dim");
  const auto shard = [&](int64_t rows, int64_t of) {
    return SequenceShard{cp == 1 || rows == length ? 0 : of * rows, length, cp};
  };
  return {q[0],
          q[1],
          k[1],
          q[2] / e,
          k[2] / e,
          e,
          a.IntegerOr("causal", 1) != 0,
          shard(q[1], rank),
          shard(k[1], (rank + cp - hop) % cp),
          a.IntegerOr("window", 0),
          0,
          a.IntegerOr("value_dim", e)};
}

AttentionDirection DirectionOf(const LocalOp& op) {
  return op.op.kind == OpKind::kAttention ? AttentionDirection::kForward : AttentionDirection::kBackward;
}

/// The workspace of cuDNN's attention, if it takes the call, on the rank that needs most, since all ranks run one
/// program. Our own attention kernels need nothing.
template <int64_t (*kBytes)(const AttentionInBlocks&)>
int64_t Attention(const LocalOp& op) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < op.op.attributes.IntegerOr("cp", 1); ++rank) {
    const AttentionInBlocks call = AttentionOfRank(op, rank);
    if (FusedAttentionTakes(call, DirectionOf(op))) most = std::max(most, kBytes(call));
  }
  return most;
}

/// The formula of each cuda kernel that needs workspace, and the kernels that need none.
struct Workspace {
  OpKind kind;
  WorkspaceFormula formula;
};
constexpr Workspace kWorkspaces[] = {
    {OpKind::kAttention, Attention<AttentionBytes>},
    {OpKind::kAttentionGrad, Attention<AttentionGradBytes>},
    {OpKind::kAttentionSinkGrad, AttentionSinkGrad},
    {OpKind::kBalance, Balance},
    {OpKind::kBiasGrad, TokenSums<1>},
    {OpKind::kClip, Clip},
    {OpKind::kDispatch, Dispatch},
    {OpKind::kGroupedMatmul, GroupedMatmul},
    {OpKind::kLayerNormBackward, TokenSumsInPass<2>},
    {OpKind::kLayerNormWeightGrad, TokenSums<2>},
    {OpKind::kMatmul, Matmul},
    {OpKind::kMean, Clip},
    {OpKind::kQuantize, Quantize},
    {OpKind::kRouterEntropy, RouterEntropy},
    {OpKind::kRowNormWeightGrad, HeadSums},
    {OpKind::kRmsNormBackward, TokenSumsInPass<1>},
    {OpKind::kRmsNormWeightGrad, TokenSums<1>},
    {OpKind::kSumSquares, SumSquares},
    {OpKind::kTokenLoss, TokenLoss},
};
constexpr std::string_view kWithoutWorkspace =
    " accumulate adamw add add_bias add_row_bias attention_merge attention_sink balance_grad bias_update cache_write "
    "cast combine combine_grad concatenate cross_entropy cross_entropy_grad dispatch_grad dropout embedding "
    "embedding_grad expert_load gelu gelu_grad "
    "latent_attention latent_keys latent_keys_grad layer_norm layer_norm_grad logits_max "
    "logits_sum muon_direction muon_update normalize pad position_embedding position_embedding_grad put_rows rms_norm "
    "rms_norm_grad rope "
    "rope_table route route_grad router_loss row_bias_grad row_norm row_norm_grad row_norm_squares_grad row_squares "
    "row_squares_grad row_weight_grad slice swiglu swiglu_grad take_rows weighted_sum weighted_swiglu "
    "weighted_swiglu_grad ";

#define ESPALIER_ANSWERED(name, op)                                                        \
  static_assert((std::ranges::count(kWorkspaces, OpKind::k##op, &Workspace::kind) == 1) != \
                    (kWithoutWorkspace.find(" " name " ") != kWithoutWorkspace.npos),      \
                "the cuda kernel of " name " needs a workspace or is in kWithoutWorkspace");
ESPALIER_KERNELS(ESPALIER_ANSWERED)
#undef ESPALIER_ANSWERED

}  // namespace

AttentionInBlocks AttentionOfRank(const LocalOp& op, int64_t rank) {
  const AttentionShape shape = ShapeOfRank(op, rank);
  const Dtype results = op.op.attributes.numbers.contains("hop") ? Dtype::kF32 : op.dtype;
  // q, k and v, or with o, lse and dO; then one input of documents, and two of dropout.
  const size_t operands = op.op.kind == OpKind::kAttention ? 3 : 6;
  const bool dropout = op.op.attributes.numbers.contains("rate");
  const bool documents = op.inputs.size() > operands + (dropout ? 2 : 0);
  return {shape,   documents ? std::vector<AttentionBlock>() : AttentionBlocksOf(shape), op.dtype,
          results, BackwardMethodOf(op.op.attributes.TextOr("backward", "parts")),       dropout};
}

std::string WhyPlainAttention(const LocalOp& op) {
  const AttentionInBlocks call = AttentionOfRank(op, 0);  // all ranks agree
  return call.whole.IsEmpty() ? "" : WhyNotFused(call, DirectionOf(op), 9);
}

WorkspaceFormula CudaWorkspaceFormula(OpKind kind) {
  const auto* found = std::ranges::find(kWorkspaces, kind, &Workspace::kind);
  return found == std::end(kWorkspaces) ? nullptr : found->formula;
}

}  // namespace espalier
