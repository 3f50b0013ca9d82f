// Every op, once, in the order of OpKind. From a row follow the kind (kMatmul) and its name ("matmul"), the declaration
// and the table of definitions (src/ops), and those of the kernels of all backends (src/kernels).
#pragma once

/// KERNEL(name, Op): an op that has a kernel in every backend. MESSAGE(name, Op): one that moves data between ranks,
/// that passes lower to such ops, or that copies between the memories of a rank.
#define ESPALIER_OPS(KERNEL, MESSAGE)                      \
  KERNEL("embedding", Embedding)                           \
  KERNEL("embedding_grad", EmbeddingGrad)                  \
  KERNEL("rms_norm", RmsNorm)                              \
  KERNEL("rms_norm_grad", RmsNormGrad)                     \
  KERNEL("rms_norm_weight_grad", RmsNormWeightGrad)        \
  KERNEL("rms_norm_backward", RmsNormBackward)             \
  KERNEL("matmul", Matmul)                                 \
  KERNEL("grouped_matmul", GroupedMatmul)                  \
  KERNEL("route", Route)                                   \
  KERNEL("route_grad", RouteGrad)                          \
  KERNEL("expert_load", ExpertLoad)                        \
  KERNEL("concatenate", Concatenate)                       \
  KERNEL("bias_update", BiasUpdate)                        \
  KERNEL("balance", Balance)                               \
  KERNEL("balance_grad", BalanceGrad)                      \
  KERNEL("router_loss", RouterLoss)                        \
  KERNEL("router_entropy", RouterEntropy)                  \
  KERNEL("dispatch", Dispatch)                             \
  KERNEL("dispatch_grad", DispatchGrad)                    \
  KERNEL("combine", Combine)                               \
  KERNEL("combine_grad", CombineGrad)                      \
  KERNEL("weighted_swiglu", WeightedSwiglu)                \
  KERNEL("weighted_swiglu_grad", WeightedSwigluGrad)       \
  KERNEL("add_row_bias", AddRowBias)                       \
  KERNEL("row_bias_grad", RowBiasGrad)                     \
  KERNEL("row_weight_grad", RowWeightGrad)                 \
  KERNEL("rope", Rope)                                     \
  KERNEL("rope_table", RopeTable)                          \
  KERNEL("latent_keys", LatentKeys)                        \
  KERNEL("latent_keys_grad", LatentKeysGrad)               \
  KERNEL("latent_attention", LatentAttention)              \
  KERNEL("attention", Attention)                           \
  KERNEL("attention_grad", AttentionGrad)                  \
  KERNEL("attention_merge", AttentionMerge)                \
  KERNEL("attention_sink", AttentionSink)                  \
  KERNEL("attention_sink_grad", AttentionSinkGrad)         \
  KERNEL("cache_write", CacheWrite)                        \
  KERNEL("add", Add)                                       \
  KERNEL("swiglu", Swiglu)                                 \
  KERNEL("swiglu_grad", SwigluGrad)                        \
  KERNEL("cast", Cast)                                     \
  KERNEL("quantize", Quantize)                             \
  KERNEL("logits_max", LogitsMax)                          \
  KERNEL("logits_sum", LogitsSum)                          \
  KERNEL("token_loss", TokenLoss)                          \
  KERNEL("cross_entropy_grad", CrossEntropyGrad)           \
  KERNEL("cross_entropy", CrossEntropy)                    \
  KERNEL("take_rows", TakeRows)                            \
  KERNEL("put_rows", PutRows)                              \
  KERNEL("sum_squares", SumSquares)                        \
  KERNEL("clip", Clip)                                     \
  KERNEL("mean", Mean)                                     \
  KERNEL("adamw", Adamw)                                   \
  KERNEL("muon_direction", MuonDirection)                  \
  KERNEL("normalize", Normalize)                           \
  KERNEL("weighted_sum", WeightedSum)                      \
  KERNEL("muon_update", MuonUpdate)                        \
  KERNEL("layer_norm", LayerNorm)                          \
  KERNEL("layer_norm_grad", LayerNormGrad)                 \
  KERNEL("layer_norm_weight_grad", LayerNormWeightGrad)    \
  KERNEL("layer_norm_backward", LayerNormBackward)         \
  KERNEL("position_embedding", PositionEmbedding)          \
  KERNEL("position_embedding_grad", PositionEmbeddingGrad) \
  KERNEL("add_bias", AddBias)                              \
  KERNEL("bias_grad", BiasGrad)                            \
  KERNEL("gelu", Gelu)                                     \
  KERNEL("gelu_grad", GeluGrad)                            \
  KERNEL("dropout", Dropout)                               \
  KERNEL("row_squares", RowSquares)                        \
  KERNEL("row_squares_grad", RowSquaresGrad)               \
  KERNEL("row_norm", RowNorm)                              \
  KERNEL("row_norm_grad", RowNormGrad)                     \
  KERNEL("row_norm_squares_grad", RowNormSquaresGrad)      \
  KERNEL("row_norm_weight_grad", RowNormWeightGrad)        \
  KERNEL("accumulate", Accumulate)                         \
  MESSAGE("reshard", Reshard)                              \
  KERNEL("slice", Slice)                                   \
  KERNEL("pad", Pad)                                       \
  MESSAGE("all_gather", AllGather)                         \
  MESSAGE("reduce_scatter", ReduceScatter)                 \
  MESSAGE("all_reduce", AllReduce)                         \
  MESSAGE("all_to_all", AllToAll)                          \
  MESSAGE("ring_shift", RingShift)                         \
  MESSAGE("gather_stages", GatherStages)                   \
  MESSAGE("send", Send)                                    \
  MESSAGE("recv", Recv)                                    \
  MESSAGE("copy_out", CopyOut)                             \
  MESSAGE("copy_in", CopyIn)

/// X(name, Op) for every op that has a kernel.
#define ESPALIER_KERNELS(X) ESPALIER_OPS(X, ESPALIER_NO_KERNEL)
#define ESPALIER_NO_KERNEL(name, op)
