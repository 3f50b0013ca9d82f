// Every op that has a kernel, once: all backends declare and list their kernels from here, so none can lack one.
#pragma once

#define ESPALIER_KERNELS(X)                           \
  X("embedding", Embedding)                           \
  X("embedding_grad", EmbeddingGrad)                  \
  X("rms_norm", RmsNorm)                              \
  X("rms_norm_grad", RmsNormGrad)                     \
  X("rms_norm_weight_grad", RmsNormWeightGrad)        \
  X("layer_norm", LayerNorm)                          \
  X("layer_norm_grad", LayerNormGrad)                 \
  X("layer_norm_weight_grad", LayerNormWeightGrad)    \
  X("position_embedding", PositionEmbedding)          \
  X("position_embedding_grad", PositionEmbeddingGrad) \
  X("add_bias", AddBias)                              \
  X("bias_grad", BiasGrad)                            \
  X("gelu", Gelu)                                     \
  X("gelu_grad", GeluGrad)                            \
  X("row_squares", RowSquares)                        \
  X("row_squares_grad", RowSquaresGrad)               \
  X("row_norm", RowNorm)                              \
  X("row_norm_grad", RowNormGrad)                     \
  X("row_norm_squares_grad", RowNormSquaresGrad)      \
  X("row_norm_weight_grad", RowNormWeightGrad)        \
  X("matmul", Matmul)                                 \
  X("rope", Rope)                                     \
  X("rope_table", RopeTable)                          \
  X("attention", Attention)                           \
  X("attention_grad", AttentionGrad)                  \
  X("attention_merge", AttentionMerge)                \
  X("add", Add)                                       \
  X("swiglu", Swiglu)                                 \
  X("swiglu_grad", SwigluGrad)                        \
  X("logits_max", LogitsMax)                          \
  X("logits_sum", LogitsSum)                          \
  X("token_loss", TokenLoss)                          \
  X("cross_entropy_grad", CrossEntropyGrad)           \
  X("cast", Cast)                                     \
  X("sum_squares", SumSquares)                        \
  X("clip", Clip)                                     \
  X("adamw", Adamw)                                   \
  X("muon_direction", MuonDirection)                  \
  X("normalize", Normalize)                           \
  X("weighted_sum", WeightedSum)                      \
  X("muon_update", MuonUpdate)                        \
  X("accumulate", Accumulate)                         \
  X("slice", Slice)                                   \
  X("pad", Pad)
