#include "espalier/passes/pipeline.hpp"

#include "espalier/ops/verify.hpp"

namespace espalier {

void RunPasses(Graph& graph, const PassContext& context, Purpose purpose,
               const std::function<void(const std::string& pass, const Graph&)>& observe, Verification verification) {
  RepeatedVerifier verifier;
  const auto run = [&](const std::string& name, const auto& pass) {
    pass();
    if (verification == Verification::kEveryPass) verifier.Verify(graph, name);
    if (observe) observe(name, graph);
  };
  if (verification == Verification::kEveryPass) verifier.Verify(graph, "model");
  // First: all later passes treat forward and backward ops alike.
  if (purpose == Purpose::kTrain) run("differentiate", [&] { Differentiate(graph); });
  // Before partition, which places the accumulators.
  if (purpose != Purpose::kSample) run("merge_gradients", [&] { MergeGradients(graph, context); });
  // Before partition, which places norm, update and the reshards of gradients. Evaluation gets the mean loss only.
  if (purpose != Purpose::kSample) run("optimize", [&] { Optimize(graph, context.deck, purpose); });
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
  // After lower_reshards, which makes the collectives.
  run("coalesce", [&] { Coalesce(graph, context.mesh); });
  // After coalesce, when placements and messages are settled.
  run("merge_updates", [&] { MergeUpdates(graph); });
  // After coalesce, whose messages it moves or splits. Before prefetch, which looks for the first op of a layer.
  run("overlap_context", [&] { OverlapContext(graph, context); });
  // After coalesce: it moves whole messages.
  run("prefetch", [&] { Prefetch(graph, context.deck); });
  // After coalesce: it moves matmuls under whole messages.
  run("overlap_tensor", [&] { OverlapTensor(graph, context); });
  // After all passes that move ops: adjacency is final.
  run("fuse", [&] { Fuse(graph); });
  // After fuse, which adds biases to matmuls. Before tensor_strips: rows with scales of their own have strips, too.
  run("quantize", [&] { Quantize(graph, context); });
  // After fuse, which looks for single producers of values. After overlap_tensor, so that weight gradients stay where
  // they cover the last strip of a message.
  run("tensor_strips", [&] { TensorStrips(graph, context); });
  // Last: a send follows the op that makes its value, so a sum whose norm is on the next stage must not be fused with
  // it. After tensor_strips: the send follows the last strip.
  run("cut", [&] { Cut(graph, context.stage_of_chunk); });
  if (verification == Verification::kAtTheEnd) verifier.Verify(graph, "all passes");
}

}  // namespace espalier
