// Every pass, once, in order: its name, its function, the properties of a graph (properties.hpp) that it requires,
// establishes and ends, and why it is at this place (`espalier plan --passes` prints that). A pass does nothing to
// programs of other purposes than its own, or where the deck turns it off. What it does is in the source of its name,
// with a picture.
//
// Before the first pass kPropertiesOfModels hold. A property holds until a pass ends it. Graphs are checked for what a
// pass requires before it, and for what it establishes after it. A place that is about speed alone needs none.
#pragma once

#define ESPALIER_PASSES(X)                                                                                             \
  X("leave_copies", LeaveCopies, kCastCopies, {}, {}, "first: only casts are left of the program that makes copies")   \
  X("differentiate", Differentiate, kUnplaced | kUnfused | kCastCopies, kDifferentiated, {},                           \
    "first: all later passes treat forward and backward ops alike")                                                    \
  X("merge_gradients", MergeGradients, kUnplaced | kDifferentiated, kSummed, {},                                       \
    "before partition, which places the accumulators")                                                                 \
  X("optimize", Optimize, kUnplaced | kSummed, kSingleUpdates, {},                                                     \
    "before partition, which places norm and update; to evaluate, it adds the mean loss only")                         \
  X("context_parallel", ContextParallel, kUnplaced | kDifferentiated, {}, {},                                          \
    "after differentiate: it rewrites attention and its gradient; before partition, which places the new ops")         \
  X("partition", Partition, kUnplaced | kReshards | kSummed | kSingleUpdates, kPlaced, kUnplaced,                      \
    "before all passes that need placements")                                                                          \
  X("recompute", Recompute, kPlaced | kReshards, {}, {},                                                               \
    "after partition: reshards of recomputed values are cloned, too, while each is one op")                            \
  X("expert_passes", RepeatExperts, kPlaced | kReshards, {}, {},                                                       \
    "after recompute, since it computes again only what that keeps; before rematerialize: its ops in backward read "   \
    "parameters")                                                                                                      \
  X("rematerialize", Rematerialize, kPlaced | kReshards, {}, {}, "after recompute, whose clones read parameters, too") \
  X("lower_reshards", LowerReshards, kPlaced | kReshards, kLowered, kReshards,                                         \
    "after the passes that clone reshards or look for them")                                                           \
  X("store_gradients", StoreGradients, kSummed | kLowered, {}, {},                                                     \
    "after lower_reshards: only then it is known which op makes a reduced gradient")                                   \
  X("chunk_loss", ChunkLoss, kPlaced | kSingleMessages | kUnfused, {}, {},                                             \
    "after store_gradients, which settles where gradients stay; before coalesce, which merges the messages of a "      \
    "chunk")                                                                                                           \
  X("coalesce", Coalesce, kLowered | kSingleMessages | kCastCopies, {}, kSingleMessages,                               \
    "after lower_reshards, which makes the collectives")                                                               \
  X("keep_copies", KeepCopies, kPlaced | kSingleUpdates | kCastCopies, {}, kCastCopies,                                \
    "after partition, which places copies like masters, and coalesce, which orders messages by what makes their "      \
    "inputs")                                                                                                          \
  X("place_states", PlaceStates, kPlaced | kSingleUpdates, {}, {},                                                     \
    "after keep_copies, which makes the copies that forward reads")                                                    \
  X("merge_updates", MergeUpdates, kSingleUpdates, {}, kSingleUpdates,                                                 \
    "after keep_copies, which writes a copy per update, and place_states, which says what goes by chunks")             \
  X("join", Join, kPlaced | kLowered | kUnfused | kWhole, {}, {},                                                      \
    "after coalesce, which gathers a layer's weights in one message; before passes that move matmuls")                 \
  X("overlap_windows", OverlapWindows, kLowered | kWhole | kUncut, {}, {},                                             \
    "after coalesce, whose messages it moves or splits; before prefetch, which looks for the first op of a layer")     \
  X("prefetch", Prefetch, kLowered, {}, {}, "after coalesce: it moves whole messages")                                 \
  X("overlap_tensor", OverlapTensor, kLowered, {}, {}, "after coalesce: it moves matmuls under whole messages")        \
  X("fuse", Fuse, kLowered | kUnfused | kWhole | kUncut, {}, kUnfused,                                                 \
    "after all passes that move ops: adjacency is final")                                                              \
  X("quantize", Quantize, kPlaced | kWhole, {}, kUnfused,                                                              \
    "after fuse, which adds biases to matmuls; before tensor_strips: rows with scales of their own have strips, too")  \
  X("tensor_strips", TensorStrips, kLowered | kWhole | kUncut, {}, kWhole,                                             \
    "after fuse, which looks for single producers, and overlap_tensor: its weight gradients cover the last strips")    \
  X("fuse_norm_gradients", FuseNormGradients, kLowered, {}, {},                                                        \
    "after tensor_strips, which cuts gradients of norms in strips, but not fused ones")                                \
  X("offload_activations", OffloadActivations, kPlaced | kLowered, {}, {},                                             \
    "after all passes that change what backward reads of forward")                                                     \
  X("stream_parameters", StreamParameters, kPlaced | kLowered, {}, {},                                                 \
    "after all passes that move what reads weights: they come in a layer before")                                      \
  X("stream_states", StreamStates, kPlaced, {}, {},                                                                    \
    "after tensor_strips and fuse, which take ops as whole: an update has strips for the pieces of its states")        \
  X("cut", Cut, kLowered | kUncut, kCut, kUncut,                                                                       \
    "last: a send follows the op that makes its value, or its last strip, and what is sent is not fused with what "    \
    "follows")
