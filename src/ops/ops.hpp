// One function per op definition; op_table.cpp lists them.
#pragma once

#include <optional>

#include "espalier/ops/op.hpp"

namespace espalier {

/// The element type of the copy that an update writes beside the master; none without attribute `copy`.
std::optional<Dtype> TypeOfCopy(const Op& op);

OpDefinition Embedding();
OpDefinition EmbeddingGrad();
OpDefinition RmsNorm();
OpDefinition RmsNormGrad();
OpDefinition RmsNormWeightGrad();
OpDefinition RmsNormBackward();
OpDefinition LayerNorm();
OpDefinition LayerNormGrad();
OpDefinition LayerNormWeightGrad();
OpDefinition LayerNormBackward();
OpDefinition PositionEmbedding();
OpDefinition PositionEmbeddingGrad();
OpDefinition AddBias();
OpDefinition BiasGrad();
OpDefinition Gelu();
OpDefinition GeluGrad();
OpDefinition Dropout();
OpDefinition RowSquares();
OpDefinition RowSquaresGrad();
OpDefinition RowNorm();
OpDefinition RowNormGrad();
OpDefinition RowNormSquaresGrad();
OpDefinition RowNormWeightGrad();
OpDefinition Matmul();
OpDefinition Rope();
OpDefinition RopeTable();
OpDefinition Attention();
OpDefinition AttentionGrad();
OpDefinition AttentionMerge();
OpDefinition CacheWrite();
OpDefinition Add();
OpDefinition Swiglu();
OpDefinition SwigluGrad();
OpDefinition Cast();
OpDefinition Quantize();
OpDefinition LogitsMax();
OpDefinition LogitsSum();
OpDefinition TokenLoss();
OpDefinition CrossEntropyGrad();
OpDefinition CrossEntropy();
OpDefinition SumSquares();
OpDefinition Clip();
OpDefinition Adamw();
OpDefinition MuonDirection();
OpDefinition Normalize();
OpDefinition WeightedSum();
OpDefinition MuonUpdate();
OpDefinition Accumulate();
OpDefinition Slice();
OpDefinition Pad();
OpDefinition TakeRows();
OpDefinition PutRows();
std::vector<OpDefinition> CommunicationOps();
/// An op whose outputs are its inputs under other placements, which are stated, not inferred.
OpDefinition Moving(OpKind kind, std::string_view summary);

}  // namespace espalier
