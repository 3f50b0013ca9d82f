#include "espalier/passes/pipeline.hpp"

#include "espalier/ops/verify.hpp"

namespace espalier {

namespace {

/// Nothing but the casts of masters, where masters are.
void RunPassesOfCopies(Graph& graph, const PassContext& context, const auto& run) {
  run("leave_copies", [&] { LeaveCopies(graph); });
  run("partition", [&] { Partition(graph, context); });
  run("keep_copies", [&] { KeepCopies(graph, Purpose::kCopies); });
}

void RunPassesOfSteps(Graph& graph, const PassContext& context, Purpose purpose, const auto& run) {
  const bool has_masters = !KeepsComputeType(purpose);
  // First: all later passes treat forward and backward ops alike.
  if (purpose == Purpose::kTrain) run("differentiate", [&] { Differentiate(graph); });
  // Before partition, which places the accumulators.
  if (has_masters) run("merge_gradients", [&] { MergeGradients(graph, context); });
  // Before partition, which places norm and update. For evaluation it adds only the mean loss.
  if (has_masters) run("optimize", [&] { Optimize(graph, context.deck, purpose); });
  // Before partition, which places the new ops; after differentiate, since it rewrites attention and its gradient.
  run("context_parallel", [&] { ContextParallel(graph, context); });
  // Before all passes that need placements.
  run("partition", [&] { Partition(graph, context); });
  // After partition: the reshards of recomputed values are cloned, too, while each is still one op.
  run("recompute", [&] { Recompute(graph, context); });
  // After recompute, whose clones read parameters, too.
  run("rematerialize", [&] { Rematerialize(graph, context); });
  // After the passes that clone reshards or look for them.
  run("lower_reshards", [&] { LowerReshards(graph, context.mesh); });
  // After lower_reshards: only then it is known which op makes a reduced gradient.
  if (purpose == Purpose::kTrain)
    run("store_gradients", [&] { StoreGradients(graph, BatchOf(context.deck, context.mesh).microbatches); });
  // After store_gradients, which settles where gradients stay. Before coalesce, which merges the messages of a chunk.
  if (purpose != Purpose::kSample) run("chunk_loss", [&] { ChunkLoss(graph, context); });
  // After lower_reshards, which makes the collectives.
  run("coalesce", [&] { Coalesce(graph, context.mesh); });
  // After partition, which places copies like their masters. After coalesce, which orders messages by what makes their
  // inputs. Scoring and sampling have weights of the compute type.
  if (has_masters) run("keep_copies", [&] { KeepCopies(graph, purpose); });
  // After keep_copies, which writes a copy per update. After coalesce, when placements and messages are settled.
  run("merge_updates", [&] { MergeUpdates(graph); });
  // After coalesce, which gathers a layer's weights in one message; before passes that move matmuls.
  run("join", [&] { Join(graph, context); });
  // After coalesce, whose messages it moves or splits. Before prefetch, which looks for the first op of a layer.
  run("overlap_context", [&] { OverlapContext(graph, context); });
  // After coalesce: these move whole messages, and matmuls under them.
  run("prefetch", [&] { Prefetch(graph, context.deck); });
  run("overlap_tensor", [&] { OverlapTensor(graph, context); });
  // After all passes that move ops: adjacency is final.
  run("fuse", [&] { Fuse(graph); });
  // After fuse, which adds biases to matmuls. Before tensor_strips: rows with scales of their own have strips, too.
  run("quantize", [&] { Quantize(graph, context); });
  // After fuse, which looks for single producers. After overlap_tensor: its weight gradients cover the last strips.
  run("tensor_strips", [&] { TensorStrips(graph, context); });
  // After tensor_strips, which cuts gradients of norms in strips, but not fused ones.
  run("fuse_norm_gradients", [&] { FuseNormGradients(graph); });
  // Last: a send follows the op that makes its value, or its last strip. What is sent is not fused with what follows.
  run("cut", [&] { Cut(graph, context.stage_of_chunk); });
}

}  // namespace

void RunPasses(Graph& graph, const PassContext& context, Purpose purpose,
               const std::function<void(const std::string& pass, const Graph&)>& observe, Verification verification) {
  RepeatedVerifier verifier;
  const auto run = [&](const std::string& name, const auto& pass) {
    pass();
    if (verification == Verification::kEveryPass) verifier.Verify(graph, name);
    if (observe) observe(name, graph);
  };
  if (verification == Verification::kEveryPass) verifier.Verify(graph, "model");
  if (purpose == Purpose::kCopies)
    RunPassesOfCopies(graph, context, run);
  else
    RunPassesOfSteps(graph, context, purpose, run);
  if (verification == Verification::kAtTheEnd) verifier.Verify(graph, "all passes");
}

}  // namespace espalier
