// The kinds of ops and their names. src/ops/op_table.cpp defines what each of them does.
#pragma once

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

/// In the order of kOpNames.
enum class OpKind : uint8_t {
  kNone,  ///< no op: the place of one that a pass has removed
  kEmbedding,
  kEmbeddingGrad,
  kRmsNorm,
  kRmsNormGrad,
  kRmsNormWeightGrad,
  kRmsNormBackward,
  kMatmul,
  kRope,
  kRopeTable,
  kAttention,
  kAttentionGrad,
  kAttentionMerge,
  kCacheWrite,
  kAdd,
  kSwiglu,
  kSwigluGrad,
  kCast,
  kQuantize,
  kLogitsMax,
  kLogitsSum,
  kTokenLoss,
  kCrossEntropyGrad,
  kCrossEntropy,
  kTakeRows,
  kPutRows,
  kSumSquares,
  kClip,
  kAdamw,
  kMuonDirection,
  kNormalize,
  kWeightedSum,
  kMuonUpdate,
  kLayerNorm,
  kLayerNormGrad,
  kLayerNormWeightGrad,
  kLayerNormBackward,
  kPositionEmbedding,
  kPositionEmbeddingGrad,
  kAddBias,
  kBiasGrad,
  kGelu,
  kGeluGrad,
  kDropout,
  kRowSquares,
  kRowSquaresGrad,
  kRowNorm,
  kRowNormGrad,
  kRowNormSquaresGrad,
  kRowNormWeightGrad,
  kAccumulate,
  kReshard,
  kSlice,
  kPad,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kRingShift,
  kGatherStages,
  kSend,
  kRecv,
};

/// The names by which graphs, programs and kernels know the kinds.
inline constexpr std::array<std::string_view, 62> kOpNames = {
    "",
    "embedding",
    "embedding_grad",
    "rms_norm",
    "rms_norm_grad",
    "rms_norm_weight_grad",
    "rms_norm_backward",
    "matmul",
    "rope",
    "rope_table",
    "attention",
    "attention_grad",
    "attention_merge",
    "cache_write",
    "add",
    "swiglu",
    "swiglu_grad",
    "cast",
    "quantize",
    "logits_max",
    "logits_sum",
    "token_loss",
    "cross_entropy_grad",
    "cross_entropy",
    "take_rows",
    "put_rows",
    "sum_squares",
    "clip",
    "adamw",
    "muon_direction",
    "normalize",
    "weighted_sum",
    "muon_update",
    "layer_norm",
    "layer_norm_grad",
    "layer_norm_weight_grad",
    "layer_norm_backward",
    "position_embedding",
    "position_embedding_grad",
    "add_bias",
    "bias_grad",
    "gelu",
    "gelu_grad",
    "dropout",
    "row_squares",
    "row_squares_grad",
    "row_norm",
    "row_norm_grad",
    "row_norm_squares_grad",
    "row_norm_weight_grad",
    "accumulate",
    "reshard",
    "slice",
    "pad",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "ring_shift",
    "gather_stages",
    "send",
    "recv",
};
static_assert(kOpNames.back() == "recv" && static_cast<size_t>(OpKind::kRecv) + 1 == kOpNames.size());

constexpr std::string_view Name(OpKind kind) { return kOpNames[static_cast<size_t>(kind)]; }

/// The kind with this name, if there is one.
std::optional<OpKind> FindOpKind(std::string_view name);
/// The same; CHECKs that it exists.
OpKind OpKindOf(std::string_view name);

/// Collectives of a group: every member sends to and receives from every other. They carry one or more tensors.
constexpr bool IsCollective(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce ||
         kind == OpKind::kAllToAll;
}

/// Point-to-point between pipeline stages.
constexpr bool IsBetweenStages(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

/// Everything that runs on a communication lane.
constexpr bool IsCommunication(OpKind kind) {
  return IsCollective(kind) || IsBetweenStages(kind) || kind == OpKind::kRingShift || kind == OpKind::kGatherStages;
}

/// `reshard` and what it lowers to: the placements of the outputs are stated, not inferred.
constexpr bool IsReshard(OpKind kind) {
  return kind == OpKind::kReshard || kind == OpKind::kSlice || kind == OpKind::kPad || IsCollective(kind) ||
         IsBetweenStages(kind) || kind == OpKind::kGatherStages;
}

}  // namespace espalier

/// A kind prints as its name.
template <>
struct fmt::formatter<espalier::OpKind> : fmt::formatter<std::string_view> {
  format_context::iterator format(espalier::OpKind kind, format_context& context) const;
};
