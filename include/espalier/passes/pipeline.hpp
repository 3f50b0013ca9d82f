// The compiler's passes, Graph -> Graph, and the ordered list of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/model/model.hpp"

namespace espalier {

/// What passes may depend on besides the graph.
struct PassContext {
  const Deck& deck;
  Mesh mesh;
  std::vector<int> stage_of_chunk;
  const ScheduleTraits& schedule;
  JoinMatmuls join_matmuls = JoinMatmuls::kNever;  ///< fusion.join_matmuls
};

/// Adds the backward ops of the loss: input gradients in role B, weight gradients in role W. Weight gradients are named
/// "gradients/<parameter>" (further uses of a tied weight "gradients/<parameter>.2", ...).
void Differentiate(Graph& graph);

/// Gradient accumulation: turns weight gradients, loss and count into accumulators over the microbatches of a step.
/// Gradients are reduced over ranks before or after that (parallel.reduce).
void MergeGradients(Graph& graph, const PassContext& context);

/// With one microbatch per step, gradients that were reduced after it are written to their accumulators, not added.
/// After lower_reshards: a reshard that changes nothing has no op that could write.
void StoreGradients(Graph& graph, int64_t microbatches);

/// Adds norm, clipping and AdamW (roles S and U) with their states; results "mean_loss", "norm". For evaluation only
/// the mean loss.
void Optimize(Graph& graph, const Deck& deck, Purpose purpose);

/// Rewrites attention over sequences that are sharded on cp (parallel.context). Does nothing where cp is 1.
void ContextParallel(Graph& graph, const PassContext& context);

/// Gives every value its placements, and inserts a reshard where an op needs other placements than its input has.
void Partition(Graph& graph, const PassContext& context);

/// Activation checkpointing: clones forward ops into role B instead of keeping their outputs (recompute.mode).
void Recompute(Graph& graph, const PassContext& context);

/// Moves role P to the front, and gathers sharded parameters again for backward instead of keeping them
/// (recompute.regather).
void Rematerialize(Graph& graph, const PassContext& context);

/// Lowers each `reshard` to collectives and slices, by least traffic.
void LowerReshards(Graph& graph, const Mesh& mesh);

/// Computes the loss of a microbatch and its gradient in chunks of rows, in forward (loss.chunks).
void ChunkLoss(Graph& graph, const PassContext& context);

/// Merges collectives of one kind, group, role and layer into one op with one message per peer; sums of gradients also
/// across short layers.
void Coalesce(Graph& graph, const Mesh& mesh);

/// Matmuls of one input whose results are read together become one: q, k and v; gate and up (fusion.join_matmuls).
void Join(Graph& graph, const PassContext& context);

/// Issues cp communication before the ops that do not need it (overlap.context).
void OverlapContext(Graph& graph, const PassContext& context);

/// Leaves only masters and the casts that make their copies (Purpose::kCopies).
void LeaveCopies(Graph& graph);

/// Keeps copies of master weights from step to step: updates write them, and casts only in Purpose::kCopies.
void KeepCopies(Graph& graph, Purpose purpose);

/// Merges the AdamW updates of a chunk into one multi-tensor op.
void MergeUpdates(Graph& graph);

/// Moves gathers of parameters overlap.prefetch layers ahead, within their chunk and role.
void Prefetch(Graph& graph, const Deck& deck);

/// Moves weight-gradient matmuls between tp collectives of backward and their consumers (overlap.tensor).
void OverlapTensor(Graph& graph, const PassContext& context);

/// Fuses additions into adjacent norms, gradients of norms and matmuls, and the loss of whole rows of logits with its
/// gradient. Results stay bitwise the same, except those of bf16 matmuls with a bias.
void Fuse(Graph& graph);

/// Quantizes the operands of the matmuls that the model marks with kFp8Mark (precision.matmul = "fp8"). A matmul whose
/// shards do not suit fp8 stays as it is and keeps the mark.
void Quantize(Graph& graph, const PassContext& context);

/// Splits the ops between two attentions into strips of rows, so that tp messages overlap with matmuls
/// (overlap.tensor_strips).
void TensorStrips(Graph& graph, const PassContext& context);

/// Fuses the input gradient of a norm with its weight gradient, which moves to role B. No bit changes.
void FuseNormGradients(Graph& graph);

/// Inserts send and recv where a value crosses stages, and gather_stages where scalars are needed on all of them.
void Cut(Graph& graph, const std::vector<int>& stage_of_chunk);

/// When the graph is verified: after every pass, which names the pass that broke it, or once after the last one.
enum class Verification : uint8_t { kEveryPass, kAtTheEnd };

/// Runs every pass on a forward graph, in order, and verifies. `observe` (may be empty) sees each pass's name and
/// result.
void RunPasses(Graph& graph, const PassContext& context, Purpose purpose,
               const std::function<void(const std::string& pass, const Graph&)>& observe = {},
               Verification verification = Verification::kEveryPass);

}  // namespace espalier
